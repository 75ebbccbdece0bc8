"""Plan of a search as it is shown before the first trial: the knobs, their values, the outputs, the command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from autotune.durations import format_duration
from autotune.report.knob_table import KnobRow, knob_table
from autotune.report.plain_text import plain

_LONGEST_NOTE = 1000  # characters: a sentence and three paths


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Plan of a search, for people.

    Attributes:
        knobs: Rows of the knobs.
        skipped: Keys that are not tuned, with the reason.
        combinations: Number of points of the space.
        redirected: Output keys that point into each trial's own folder.
        notes: Further remarks.
        command: The trainer's command, without secrets.
        budget_s: The whole budget, in seconds.
        validate_s: Longest training of each of the two validation trials; None for none.
        race_s: Time for the race of the answer; 0 for none.
        races_always: Whether every answer is raced; else one that changes the batch or the precision.
    """

    knobs: Sequence[KnobRow]
    skipped: Mapping[str, str]
    combinations: int
    redirected: Sequence[str]
    notes: Sequence[str]
    command: Sequence[str]
    budget_s: float
    validate_s: float | None = None
    race_s: float = 0.0
    races_always: bool = False


def print_plan(console: Console, plan: SearchPlan) -> None:
    """Print the knobs, the skipped keys with reasons, the redirected outputs, and the command."""
    console.print(knob_table(plan.knobs))
    for line in _lines(plan):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _lines(plan: SearchPlan) -> list[str]:
    lines = [f"not tuned: {path} ({why})" for path, why in plan.skipped.items()]
    if plan.redirected:
        lines.append(f"into each trial's own folder, starting empty: {', '.join(plan.redirected)}")
    validation = f", and to train both for up to {format_duration(plan.validate_s)}" if plan.validate_s else ""
    race = ""
    if plan.race_s:
        calls = "" if plan.races_always else ", if the batch or the precision changes"
        race = f"; {format_duration(plan.race_s)} to race both on the loss{calls}"
    return [
        *lines,
        *(plain(note, _LONGEST_NOTE) for note in plan.notes),
        f"command: {' '.join(plan.command)}",
        f"{plan.combinations:,} combinations; {format_duration(plan.budget_s)} for everything, "
        f"part of it kept back to confirm the best against today's values{validation}{race}",
    ]
