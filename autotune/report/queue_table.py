"""Screen of the queue: one entry below the other, with what it waits for, or what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from autotune.clock import format_duration
from autotune.report.plain_text import plain

_LONGEST_NOTE = 400


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """Entry as the screen shows it.

    Attributes:
        number: Its number.
        state: Its state, one word.
        config: Its config.
        budget_s: Its whole budget in seconds.
        left_s: What is left of that.
        start: When it may start, in a word.
        gain: Confirmed speed over that of the config as it was, with its interval; None where nothing better was found.
        advice: Id of the advice that came of it; None if none did.
        reason: What it waits for, in words; None for nothing.
        note: What happened last, in words; empty for nothing.
    """

    number: int
    state: str
    config: str
    budget_s: float
    left_s: float
    start: str
    gain: tuple[float, float, float] | None
    advice: str | None
    reason: str | None
    note: str


def print_queue(console: Console, rows: Sequence[QueueRow]) -> None:
    """Print the entries of the queue."""
    if not rows:
        empty = "The queue is empty. `autotune queue add --config config.yaml` asks for a search."
        console.print(empty, soft_wrap=True)
    for row in rows:
        left = f", {format_duration(row.left_s)} left" if row.reason and 0 < row.left_s < row.budget_s else ""
        plan = f"({format_duration(row.budget_s)}{left}, start: {row.start})"
        console.print(f"{row.number:>3}  {row.state:<8} {plain(row.config)}  {plan}", soft_wrap=True, highlight=False)
        for line in _below(row):
            console.print(f"     {plain(line, longest=_LONGEST_NOTE)}", soft_wrap=True, highlight=False)


def _below(row: QueueRow) -> list[str]:
    lines = []
    if row.gain is not None:
        ratio, low, high = row.gain
        why = f"; `autotune daemon explain {row.advice}`" if row.advice else ""
        lines.append(f"better: {ratio:.2f}x (95 % interval {low:.2f} to {high:.2f}){why}")
    if row.reason:
        lines.append(row.reason)
    if row.note:
        lines.append(row.note)
    return lines
