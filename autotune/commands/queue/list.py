"""``autotune queue list``, ``log`` and ``wait``: the entries, what their searches printed, and their ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console

from autotune.clock import format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.parameters import Duration, entries_or_all_argument, entry_argument, json_option
from autotune.report.plain_text import plain
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.daemon.queue import Entry

_ALONE = "its daemon is gone: the search ends by itself, and goes on with the rest of its budget when one runs again"


@click.command(name="list")
@json_option
@click.pass_obj
def command(call: Invocation, as_json: bool) -> int:
    """Shows the entries of the queue: what runs, what waits and for what, and what came of those that are done."""
    with signals_held():
        from autotune.commands.printing import say_object
        from autotune.commands.queue.opened import NO_DAEMON, entries_object, open_queue, reasons
        from autotune.daemon.queue import EntryState
        from autotune.report.console import text_console

    home, queue = open_queue()
    entries, why = queue.entries(), reasons(home)
    if as_json:
        call.answer(lambda: say_object(entries_object(entries, why), indent=2))
        return 0
    rows = [
        QueueRow(
            number=entry.number,
            state=entry.state.value,
            config=entry.config,
            budget_s=entry.budget_s,
            left_s=entry.budget_s if entry.state is EntryState.HELD else entry.left_s,
            start=str(entry.start),
            gain=entry.answer.ratio if entry.answer and entry.answer.verdict == "better" else None,
            advice=entry.answer.advice if entry.answer else None,
            reason=_reason(entry, why),
            note=entry.note,
        )
        for entry in entries
    ]
    print_queue(text_console(), rows)
    if why is None and any(entry.state.is_open for entry in entries):
        text_console().print(f"\nNothing starts: {NO_DAEMON}.", soft_wrap=True)
    return 0


def _reason(entry: "Entry", why: Mapping[str, str] | None) -> str | None:
    """Return what an entry waits for; None for nothing, or where its note says it."""
    from autotune.daemon.queue import EntryState

    if why is None:
        return _ALONE if entry.state is EntryState.RUNNING else None
    return entry.shown_reason(why)


_LONGEST_LINE_BYTES = 1 << 16  # what is longer is shown in pieces


@click.command(name="log")
@entry_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the entry is done.")
def log_command(number: int, follow: bool) -> int:
    """Shows what the searches of an entry printed about their progress."""
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.commands.printing import say
        from autotune.commands.queue.opened import open_queue
        from autotune.daemon.queue import find_entries
        from autotune.errors import AutotuneError
        from autotune.files import open_regular

    _home, queue = open_queue()
    clock = SystemClock()
    (entry,) = find_entries(queue.entries(), [number])
    position = 0
    while True:
        goes_on = follow and any(one.id == entry.id and one.goes_on for one in queue.entries())
        try:
            with open_regular(queue.log(entry)) as file:
                file.seek(position)
                while line := file.readline(_LONGEST_LINE_BYTES):
                    is_whole = line.endswith(b"\n") or len(line) == _LONGEST_LINE_BYTES
                    if not is_whole and goes_on:
                        break
                    position += len(line)
                    say(line.decode("utf-8", "replace").removesuffix("\n"))
        except FileNotFoundError:
            if not follow:
                say(f"Entry {number} has not been started yet.")
        except OSError as error:
            raise AutotuneError(f"the log cannot be read: {error.strerror}", where=str(queue.log(entry))) from error
        if not goes_on:
            return 0
        clock.wait(0.25)


@click.command(name="wait")
@entries_or_all_argument
@click.option("--for", "longest_s", type=Duration(), help="Longest time to wait; the exit code is 1 if it is over.")
@json_option
@click.pass_obj
def wait_command(call: Invocation, numbers: tuple[int, ...], longest_s: float | None, as_json: bool) -> int:
    """Returns when these entries, or all that wait or run, are done, failed, held, paused or removed.

    The exit code is 1 if one has failed.
    """
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.commands.printing import say, say_object
        from autotune.commands.queue.opened import NO_DAEMON, entries_object, open_queue, reasons
        from autotune.daemon.queue import EntryState, find_entries
        from autotune.errors import AutotuneError

    home, queue = open_queue()
    clock = SystemClock()
    named = find_entries(queue.entries(), numbers) if numbers else [one for one in queue.entries() if one.goes_on]
    chosen = {entry.id for entry in named}
    if reasons(home) is None:
        raise AutotuneError(NO_DAEMON, remedy="Nothing would ever be done.")
    until_s = None if longest_s is None else clock.now_s() + longest_s
    while True:
        entries = [entry for entry in queue.entries() if entry.id in chosen]
        if not any(entry.goes_on for entry in entries):
            break
        if until_s is not None and clock.now_s() >= until_s:
            raise AutotuneError(f"not all were done within {format_duration(longest_s or 0.0)}", remedy="They go on.")
        clock.wait(0.5)
    if as_json:
        call.answer(lambda: say_object(entries_object(entries, {}), indent=2))
    else:
        for entry in entries:
            say(f"{entry.number}: {entry.state.value}" + (f": {entry.note}" if entry.note else ""))
    return int(any(entry.state is EntryState.FAILED for entry in entries))


_LONGEST_NOTE = 400


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """Entry as the screen shows it.

    Attributes:
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
