"""Screen of a step's profile: its phases and its operations."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.diagnose.profiles import Phase, PipelineProfile, StepProfile
from autotune.report.plain_text import plain


def print_step_profile(console: Console, profile: StepProfile) -> None:
    """Print the phases of a step, the step, and its operations."""
    of = f" of {profile.framework}" if profile.framework else ""
    size = "" if profile.batch_size is None else f": batches of {profile.batch_size:.4g}"
    console.print(f"Step{of}{size}; {profile.steps} steps", soft_wrap=True)
    console.print(Text(profile.verdict), soft_wrap=True)
    table = Table("phase", "mean ms", "median", "middle half", "p95", "p99", "share")
    for phase in (*profile.phases, profile.step):
        table.add_row(*_cells(phase, profile.step.mean_ms or 0.0))
    console.print(table)
    if profile.gpu_utilization is not None:
        console.print(f"GPU busy in training: {profile.gpu_utilization:.0%} of the time.", soft_wrap=True)
    if profile.why_not is not None:
        console.print(f"Incomplete: {plain(profile.why_not)}.", soft_wrap=True)
    if not profile.operations:
        return
    table = Table("operation", "times a step", "ms on the host", "ms on a GPU")
    for one in profile.operations[:10]:
        table.add_row(plain(one.name), f"{one.times:.4g}", f"{one.host_ms:.3f}", f"{one.device_ms:.3f}")
    console.print(table)
    steps = f"The operations are from {profile.framework}'s profiler, over {profile.profiled_steps} steps."
    console.print(plain(steps), soft_wrap=True)


def _cells(phase: Phase, step_ms: float) -> tuple[str, ...]:
    if phase.mean_ms is None or phase.median_ms is None:
        return plain(phase.name), "not measured", "", plain(phase.why_not or "")
    middle = "{:.2f} to {:.2f}".format(*phase.quartiles_ms) if phase.quartiles_ms else ""
    tail = [f"{value:.2f}" for value in phase.tail_ms or ()] or ["", ""]
    share = f"{phase.mean_ms / step_ms:.0%}" if step_ms else ""
    return plain(phase.name), f"{phase.mean_ms:.2f}", f"{phase.median_ms:.2f}", middle, *tail, share


# Screen of a pipeline's profile.


def print_pipeline_profile(console: Console, profile: PipelineProfile) -> None:
    """Print the times of batches, and what they come to."""
    if profile.batch_samples is not None:
        console.print(f"Batches of {profile.batch_samples:.4g} samples", soft_wrap=True)
    columns = ("mean", "sd", "min", "median", "p95", "p99", "max")
    table = Table("ms a batch", *columns, "variation", "batches")
    rows = {
        "loader alone": profile.loading,
        "waits in training": profile.waits,
        "steps of training": profile.steps,
        "steps, data for free": profile.replayed,
    }
    for name, times in rows.items():
        if times is None:
            table.add_row(name, "not measured")
            continue
        numbers = (f"{getattr(times, f'{column}_ms'):.2f}" for column in columns)
        table.add_row(name, *numbers, _percent(times.variation), str(times.batches))
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
    console.print(Text(profile.sentence), soft_wrap=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
