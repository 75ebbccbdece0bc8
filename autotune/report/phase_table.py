"""Screen of a step's profile: a row a phase, and whether they add up."""

from rich.console import Console
from rich.table import Table

from autotune.profile.step_phases import Phase, StepProfile
from autotune.report.plain_text import plain


def print_step_profile(console: Console, profile: StepProfile) -> None:
    """Print the phases of a step, the step, and how well they add up."""
    size = "" if profile.batch_size is None else f": batches of {profile.batch_size}"
    where = ", ".join(part for part in (profile.device, profile.compiled) if part)
    console.print(f"Step of {plain(profile.of)}{size}{f', on {plain(where)}' if where else ''}", soft_wrap=True)
    table = Table("phase", "mean ms", "median", "middle half", "share")
    for phase in (*profile.phases, profile.step):
        table.add_row(*_cells(phase, profile.step.mean_ms or 0.0))
    console.print(table)
    console.print(_adding_up(profile), soft_wrap=True)
    for line in _places(profile):
        console.print(line, soft_wrap=True)
    if profile.gpu_utilization is not None:
        console.print(f"GPU busy in training: {profile.gpu_utilization:.0%} of the time.", soft_wrap=True)


def _adding_up(profile: StepProfile) -> str:
    timed = "timed with its parts, in turn"
    if profile.steps is not None:
        timed = f"that of {profile.steps} steps of the training itself"
    if profile.adds_up is None:
        return f"The step is {timed}; its parts were not measured."
    if profile.marks_cost is not None:
        longer = "longer" if profile.marks_cost >= 0 else "less long"
        return (
            f"The phases without the rest make {profile.adds_up:.0%} of the step, which is {timed} without marks; they "
            f"are means of {profile.rounds} steps with marks, which took {abs(profile.marks_cost):.1%} {longer}."
        )
    return (
        f"The phases without the rest make {profile.adds_up:.0%} of the step, which is {timed}; "
        f"they are means of {profile.rounds} rounds in turn."
    )


def _places(profile: StepProfile) -> list[str]:
    """Return what is on which device, and what is on the CPU though there is a GPU."""
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


def _cells(phase: Phase, step_ms: float) -> tuple[str, str, str, str, str]:
    if phase.mean_ms is None or phase.median_ms is None:
        return plain(phase.name), "not measured", "", plain(phase.why_not or ""), ""
    middle = "{:.2f} to {:.2f}".format(*phase.quartiles_ms) if phase.quartiles_ms else ""
    share = f"{phase.mean_ms / step_ms:.0%}" if step_ms else ""
    return plain(phase.name), f"{phase.mean_ms:.2f}", f"{phase.median_ms:.2f}", middle, share
