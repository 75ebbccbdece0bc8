"""Screen of a step's profile: a row a phase, and whether they add up."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.diagnose.findings import percent
from autotune.diagnose.pipeline_profile import Grid, PipelineProfile
from autotune.diagnose.step_profile import Phase, StepProfile
from autotune.report.plain_text import plain, value_text


def print_step_profile(console: Console, profile: StepProfile) -> None:
    """Print the phases of a step, the step, and how well they add up."""
    size = "" if profile.batch_size is None else f": batches of {profile.batch_size}"
    where = ", ".join(part for part in (profile.device, profile.compiled) if part)
    console.print(f"Step of {plain(profile.of)}{size}{f', on {plain(where)}' if where else ''}", soft_wrap=True)
    console.print(Text(profile.verdict), soft_wrap=True)
    table = Table("phase", "mean ms", "median", "middle half", "p95", "p99", "share")
    for phase in (*profile.phases, profile.step):
        table.add_row(*_cells(phase, profile.step.mean_ms or 0.0))
    console.print(table)
    console.print(Text(_adding_up(profile)), soft_wrap=True)
    for line in _places(profile):
        console.print(line, soft_wrap=True)
    if profile.gpu_utilization is not None:
        console.print(f"GPU busy in training: {profile.gpu_utilization:.0%} of the time.", soft_wrap=True)
    if profile.slowest:
        table = Table("slowest operations, made one by one", "ms a step", "times", "from")
        for one in profile.slowest[:5]:
            table.add_row(plain(one.what), f"{one.ms:.2f}", str(one.count), plain(one.place.rpartition("/")[2]))
        console.print(table)


def _adding_up(profile: StepProfile) -> str:
    timed = "timed with its parts, in turn"
    if profile.steps is not None:
        timed = f"that of {profile.steps} steps of the training itself"
    if profile.adds_up is None:
        return f"The step is {timed}; its parts were not measured."
    share = percent(profile.adds_up)
    if profile.marks_cost is None:
        return (
            f"The phases without the rest make {share} of the step, which is {timed}; they are means of "
            f"{profile.rounds} rounds in turn."
        )
    return (
        f"The phases without the rest make {share} of the step, which is {timed} without marks; they are means of "
        f"{profile.rounds} steps with marks, which took {1.0 + profile.marks_cost:.1%} of the others' time."
    )


def _places(profile: StepProfile) -> list[str]:
    if not profile.places:
        return ["There is no GPU: all of it runs on the CPU."] if profile.device == "CPU" else []
    lines = []
    for what in dict.fromkeys(place.what for place in profile.places):
        some = [place for place in profile.places if place.what == what]
        lines.append(f"{what}: " + ", ".join(f"{place.count} on {place.device}" for place in some))
        on_cpu = [name for place in some if "cpu" in place.device.lower() for name in place.names if name]
        if on_cpu:
            lines.append(f"  on the CPU though there is a GPU: {', '.join(on_cpu)}")
    return [plain(line) for line in lines]


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


# Screen of a grid of batch sizes and workers.


def print_grid(console: Console, grid: Grid) -> None:
    """Print the trials of a grid, and what they come to."""
    keys = list(grid.cells[0].values)
    table = Table(*(plain(key) for key in keys), "samples/s", "waiting", "variation")
    for cell in grid.cells:
        values = (plain(value_text(cell.values[key])) for key in keys)
        numbers = ("none", plain(cell.why_not or ""), "")
        if cell.samples_per_s is not None:
            numbers = (f"{cell.samples_per_s:.4g}", _percent(cell.waiting_fraction), _percent(cell.variation))
        table.add_row(*values, *numbers)
    console.print(table)
    console.print(plain(grid.sentence, longest=400), soft_wrap=True)
