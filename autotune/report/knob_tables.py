"""Plan of a search as it is shown before the first trial: the knobs, their values, the outputs, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.clock import format_duration
from autotune.config.keys import first_of
from autotune.records import Scalar
from autotune.report.plain_text import plain, value_text


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Plan of a search, for people.

    Attributes:
        skipped: Keys that are not tuned, with the reason.
        combinations: Number of points of the space.
        redirected: Output keys that point into each trial's own folder.
        command: The trainer's command, without secrets.
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
    lines += [f"into each trial's own folder, starting empty: {', '.join(plan.redirected)}"] if plan.redirected else []
    lines += [plain(note, 1000) for note in plan.notes]  # characters: a sentence and three paths
    lines.append(f"command: {' '.join(plan.command)}")
    validation = f", and to train both for up to {format_duration(plan.validate_s)}" if plan.validate_s else ""
    race = ""
    if plan.race_s:
        calls = "" if plan.races_always else ", if the batch or the precision changes"
        race = f"; {format_duration(plan.race_s)} to race both on the loss{calls}"
    lines.append(
        f"{plan.combinations:,} combinations; {format_duration(plan.budget_s)} for everything, "
        f"part of it kept back to confirm the best against today's values{validation}{race}"
    )
    return lines


@dataclass(frozen=True, kw_only=True)
class KnobRow:
    """Table row of a knob.

    Attributes:
        sentence: Description; empty for a knob of the user's own.
        along: Keys that hold something else than the first at a choice, in words: a text for each choice, or none.
    """

    paths: Sequence[str]
    baseline: Scalar
    choices: Sequence[Scalar]
    label: str
    sentence: str
    along: Sequence[str] = ()


_LONGEST_NAME = 50  # that is shown whole at 80 columns


def knob_table(knobs: Sequence[KnobRow]) -> Table:
    """Return the table, with a row for each knob."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), expand=True)
    names = max((len(path) for knob in knobs for path in knob.paths), default=0)
    table.add_column("knob", no_wrap=True, min_width=min(names, _LONGEST_NAME))  # long values give way to names
    for column in ("today", "tried", "for the training"):
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
    if len(shown) > 8:
        shown = [*shown[:6], "…", shown[-1]]
    return ", ".join(shown)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Everything that was found in a config.

    Attributes:
        not_taken: Keys (or flags) with the name of a knob that are none, with the reason.
        redirected: Output keys that point into each trial's own folder.
        left: Keys that look like outputs and stay as they are, with the reason.
        command: The trainer's command, without secrets.
    """

    knobs: Sequence[KnobRow]
    not_taken: Mapping[str, str]
    redirected: Sequence[str]
    left: Mapping[str, str]
    command: Sequence[str]


def print_inventory(console: Console, inventory: Inventory) -> None:
    """Print an inventory: the table of knobs, and a line for each other finding."""
    if inventory.knobs:
        console.print(knob_table(inventory.knobs))
    else:
        console.print("No knob was found by its name. Name what may vary under knobs: in the section.", soft_wrap=True)
    alike: dict[str, list[str]] = {}
    for key, why in inventory.not_taken.items():
        alike.setdefault(why, []).append(plain(key))
    lines = [f"not taken: {first_of(keys, 3)}: {plain(why)}" for why, keys in alike.items()]
    if inventory.redirected:
        lines.append(f"into each trial's own folder, starting empty: {', '.join(map(plain, inventory.redirected))}")
    lines += [f"looks like an output and stays: {plain(key)}: {plain(why)}" for key, why in inventory.left.items()]
    lines.append(f"command: {plain(' '.join(inventory.command), longest=1000)}")
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)
