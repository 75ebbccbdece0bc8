"""Inventory of a config, printed by ``init``: knobs, keys that only look like knobs, and outputs."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from autotune.report.lines import plain
from autotune.report.preview import KnobRow, knob_table


def print_inventory(
    console: Console,
    knobs: Sequence[KnobRow],
    *,
    not_taken: Mapping[str, str],
    redirected: Sequence[str],
    left: Mapping[str, str],
    command: Sequence[str],
) -> None:
    """Print an inventory of a config.

    Args:
        console: Console to print on.
        knobs: Knobs that were found.
        not_taken: Keys (or flags) with the name of a knob that are none, with the reason.
        redirected: Output keys that point into each trial's own folder.
        left: Keys that look like outputs and stay as they are, with the reason.
        command: The trainer's command.
    """
    if knobs:
        console.print(knob_table(knobs))
    else:
        console.print("No knob was found by its name. Name what may vary under knobs: in the section.", soft_wrap=True)
    for key, why in not_taken.items():
        console.print(Text(f"not taken: {plain(key)}: {plain(why)}", style="dim"), soft_wrap=True)
    if redirected:
        keys = ", ".join(map(plain, redirected))
        console.print(Text(f"into each trial's own folder, starting empty: {keys}", style="dim"), soft_wrap=True)
    for key, why in left.items():
        console.print(Text(f"looks like an output and stays: {plain(key)}: {plain(why)}", style="dim"), soft_wrap=True)
    console.print(Text(f"command: {plain(' '.join(command), longest=1000)}", style="dim"), soft_wrap=True)
