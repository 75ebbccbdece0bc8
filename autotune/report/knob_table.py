"""Table of knobs: key, present value, choices, effect on the training, description."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.table import Table

from autotune.records import Scalar
from autotune.report.plain_text import value_text

_MOST_CHOICES = 8


@dataclass(frozen=True, kw_only=True)
class KnobRow:
    """Table row of a knob.

    Attributes:
        paths: The keys that it sets.
        baseline: Present value.
        choices: Values that may be tried.
        label: Effect on the training.
        sentence: Description; empty for a knob of the user's own.
        along: Keys that hold something else than the first at a choice, in words: a text for each choice, or none.
    """

    paths: Sequence[str]
    baseline: Scalar
    choices: Sequence[Scalar]
    label: str
    sentence: str
    along: Sequence[str] = ()


def knob_table(knobs: Sequence[KnobRow]) -> Table:
    """Return the table, with a row for each knob."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), expand=True)
    for column in ("knob", "today", "tried", "for the training"):
        table.add_column(column, style="dim" if column == "for the training" else None, no_wrap=True)
    table.add_column("", style="dim", no_wrap=True, ratio=1)  # the sentence gets what is left of the width
    for knob in knobs:
        table.add_row("\n".join(knob.paths), value_text(knob.baseline), _choices_text(knob), knob.label, knob.sentence)
    return table


def _choices_text(knob: KnobRow) -> str:
    shown = [
        f"{value_text(choice)} ({along})" if along else value_text(choice)
        for choice, along in zip_longest(knob.choices, knob.along)
    ]
    if len(shown) > _MOST_CHOICES:
        shown = [*shown[: _MOST_CHOICES - 2], "…", shown[-1]]
    return ", ".join(shown)
