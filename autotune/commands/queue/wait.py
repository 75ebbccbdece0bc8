"""``autotune queue wait``: return when entries are done."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import Duration, entries_or_all_argument, json_option
from autotune.trial.termination import signals_held

_LOOK_S = 0.5


@click.command(name="wait")
@entries_or_all_argument
@click.option("--for", "longest_s", type=Duration(), help="Longest time to wait; the exit code is 1 if it is over.")
@json_option
@click.pass_obj
def command(call: Invocation, numbers: tuple[int, ...], longest_s: float | None, as_json: bool) -> int:
    """Returns when these entries, or all that wait or run, are done, failed, held, paused or removed.

    The exit code is 1 if one has failed.
    """
    with signals_held():
        from autotune.clock import SystemClock, format_duration
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
        clock.wait(_LOOK_S)
    if as_json:
        call.answer(lambda: say_object(entries_object(entries, {}), indent=2))
    else:
        for entry in entries:
            say(f"{entry.number}: {entry.state.value}" + (f": {entry.note}" if entry.note else ""))
    return int(any(entry.state is EntryState.FAILED for entry in entries))
