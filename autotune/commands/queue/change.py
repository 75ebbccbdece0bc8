"""``autotune queue remove``, ``pause`` and ``resume``: the entries are changed, and the daemon follows."""

from collections.abc import Sequence

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import entries_argument, json_option
from autotune.commands.printing import say, say_object
from autotune.commands.queue.opened import NO_DAEMON, entries_object, open_queue, settle
from autotune.daemon.queue import CHANGES, Entry, find_entries

_DONE = {"remove": "removed", "pause": "paused", "resume": "resumed"}


def change_entries(call: Invocation, numbers: Sequence[int], verb: str, *, as_json: bool) -> int:
    """Change entries, and return when the daemon has taken account of that: nothing runs that should not.

    Args:
        verb: ``remove``, ``pause`` or ``resume``.

    Returns:
        The exit code.

    Raises:
        AutotuneError: There is no such entry, it is in no state for that, or the queue cannot be written; nothing is
            changed then, but of earlier ones of several.
    """
    home, queue = open_queue()
    entries = find_entries(queue.entries(), numbers)
    changed: list[Entry] = []
    for entry in entries:
        if verb == "remove":
            queue.remove(entry.id)
            changed.append(entry)
        elif one := queue.change(entry.id, CHANGES[verb]):
            changed.append(one)
    is_served = settle(home)
    if as_json:
        call.answer(lambda: say_object(entries_object(changed, {} if is_served else None), indent=2))
        return 0
    for entry in changed:
        say(f"{entry.number}: {_DONE[verb]}, {entry.config}")
    if verb == "resume" and not is_served:
        say(f"Nothing starts: {NO_DAEMON}.")
    return 0


@click.command(name="pause")
@entries_argument
@json_option
@click.pass_obj
def pause_command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Keeps entries from starting. A search that runs is ended; its trials and the rest of its budget stay."""
    return change_entries(call, numbers, "pause", as_json=as_json)


@click.command(name="remove")
@entries_argument
@json_option
@click.pass_obj
def remove_command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Takes entries out of the queue. A search that runs is ended first; its finished trials stay in the study."""
    return change_entries(call, numbers, "remove", as_json=as_json)


@click.command(name="resume")
@entries_argument
@json_option
@click.pass_obj
def resume_command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Lets paused entries go on, tries failed ones again, and applies what is held because a value was edited."""
    return change_entries(call, numbers, "resume", as_json=as_json)
