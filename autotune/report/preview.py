"""Preview of a search: the knobs, their values, the command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.durations import format_duration
from autotune.records import Scalar
from autotune.report.lines import plain, value_text

_MOST_CHOICES = 8


@dataclass(frozen=True, kw_only=True)
class KnobRow:
    """Table row of a knob.

    Attributes:
        paths: The keys that it sets.
        today: Present value.
        choices: Values that may be tried.
        label: Effect on the training.
        sentence: Description; empty for a knob of the user's own.
    """

    paths: Sequence[str]
    today: Scalar
    choices: Sequence[Scalar]
    label: str
    sentence: str


def print_plan(
    console: Console,
    knobs: Sequence[KnobRow],
    *,
    skipped: Mapping[str, str],
    combinations: int,
    redirected: Sequence[str],
    notes: Sequence[str],
    command: Sequence[str],
    budget_s: float,
) -> None:
    """Print the knobs, the skipped keys with reasons, the redirected outputs, and the command."""
    console.print(knob_table(knobs))
    for path, why in skipped.items():
        console.print(Text(f"not tuned: {path} ({why})", style="dim"), soft_wrap=True)
    if redirected:
        console.print(
            Text(f"into each trial's own folder, starting empty: {', '.join(redirected)}", style="dim"), soft_wrap=True
        )
    for note in notes:
        console.print(Text(plain(note), style="dim"), soft_wrap=True)
    console.print(Text(f"command: {' '.join(command)}", style="dim"), soft_wrap=True)
    console.print(
        Text(
            f"{combinations:,} combinations; {format_duration(budget_s)} for everything, "
            "part of it kept back to confirm the best against today's values",
            style="dim",
        ),
        soft_wrap=True,
    )


def knob_table(knobs: Sequence[KnobRow]) -> Table:
    """Return the table of knobs: key, present value, choices, effect on the training, description."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), expand=True)
    for column in ("knob", "today", "tried", "for the training"):
        table.add_column(column, style="dim" if column == "for the training" else None, no_wrap=True)
    table.add_column("", style="dim", no_wrap=True, ratio=1)  # the sentence gets what is left of the width
    for knob in knobs:
        table.add_row(
            "\n".join(knob.paths), value_text(knob.today), _choices_text(knob.choices), knob.label, knob.sentence
        )
    return table


def _choices_text(choices: Sequence[Scalar]) -> str:
    shown = [value_text(choice) for choice in choices]
    if len(shown) > _MOST_CHOICES:
        shown = [*shown[: _MOST_CHOICES - 2], "…", shown[-1]]
    return ", ".join(shown)
