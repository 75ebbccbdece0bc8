"""Screen of a pipeline's profile."""

from rich.console import Console
from rich.table import Table

from autotune.profile.batch_times import BatchTimes
from autotune.profile.pipeline import PipelineProfile
from autotune.report.plain_text import plain

_COLUMNS = ("ms a batch", "mean", "sd", "min", "median", "p95", "p99", "max", "variation", "batches")


def print_pipeline_profile(console: Console, profile: PipelineProfile) -> None:
    """Print the times of batches, and what they come to."""
    if profile.batch_samples is not None:
        console.print(f"Batches of {profile.batch_samples:.4g} samples", soft_wrap=True)
    table = Table(*_COLUMNS)
    rows = {
        "loader alone": profile.loading,
        "waits in training": profile.waits,
        "steps of training": profile.steps,
        "steps, data for free": profile.replayed,
    }
    for name, times in rows.items():
        table.add_row(name, *(_cells(times) if times else ["not measured", *[""] * (len(_COLUMNS) - 2)]))
    console.print(table)
    if profile.why_no_loading:
        console.print(f"The loader alone was not measured: {plain(profile.why_no_loading)}.", soft_wrap=True)
    for name, times in rows.items():
        if times and times.cycle:
            console.print(
                f"Cycle in {name}: every {times.cycle.batches:.3g} batches one takes {times.cycle.slow_ms:.3g} ms, the "
                f"others {times.cycle.others_ms:.3g} ms.",
                soft_wrap=True,
            )
    if profile.loading_stages:
        stages = Table("stage of loading", "ms an example", "share", "examples")
        for stage in profile.loading_stages:
            stages.add_row(plain(stage.name), f"{stage.mean_ms:.3f}", f"{stage.fraction:.0%}", str(stage.examples))
        console.print(stages)
    if profile.stages is not None:
        console.print(f"Two devices: {plain(profile.stages.verdict(), longest=400)}.", soft_wrap=True)
    if profile.gpu_utilization is not None:
        console.print(f"GPU busy in training: {profile.gpu_utilization:.0%} of the time.", soft_wrap=True)
    console.print(plain(profile.sentence, longest=400), soft_wrap=True)


def _cells(times: BatchTimes) -> list[str]:
    numbers = (times.mean_ms, times.sd_ms, times.min_ms, times.median_ms, times.p95_ms, times.p99_ms, times.max_ms)
    variation = "" if times.variation is None else f"{times.variation:.0%}"
    return [*(f"{number:.2f}" for number in numbers), variation, str(times.batches)]
