"""``autotune queue list``: the entries, and what each of them waits for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import json_option
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
        from autotune.report.queue_table import QueueRow, print_queue

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
    from autotune.daemon.queue import EntryState, Hold

    if why is None:
        return _ALONE if entry.state is EntryState.RUNNING else None
    says_itself = entry.state is EntryState.HELD and entry.hold is not Hold.EDITED and entry.note
    return why.get(entry.id) if entry.state.is_open and not says_itself else None
