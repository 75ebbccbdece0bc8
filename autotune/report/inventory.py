"""Inventory of a config, printed by ``init``: knobs, keys that only look like knobs, and outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from autotune.report.knob_table import KnobRow, knob_table
from autotune.report.plain_text import plain


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Everything that was found in a config.

    Attributes:
        knobs: Rows of the knobs.
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
    for key, why in inventory.not_taken.items():
        console.print(Text(f"not taken: {plain(key)}: {plain(why)}", style="dim"), soft_wrap=True)
    if inventory.redirected:
        keys = ", ".join(map(plain, inventory.redirected))
        console.print(Text(f"into each trial's own folder, starting empty: {keys}", style="dim"), soft_wrap=True)
    for key, why in inventory.left.items():
        console.print(Text(f"looks like an output and stays: {plain(key)}: {plain(why)}", style="dim"), soft_wrap=True)
    console.print(Text(f"command: {plain(' '.join(inventory.command), longest=1000)}", style="dim"), soft_wrap=True)
