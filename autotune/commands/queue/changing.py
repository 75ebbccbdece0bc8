"""Steps of ``autotune queue remove``, ``pause`` and ``resume``: the entries are changed, and the daemon follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune.commands.invocation import Invocation
from autotune.commands.printing import say, say_object
from autotune.commands.queue.opened import NO_DAEMON, entries_object, open_queue, settle
from autotune.daemon.queue.entry import Entry, EntryState
from autotune.daemon.queue.queue import find_entries
from autotune.errors import AutotuneError

_DONE = {"remove": "removed", "pause": "paused", "resume": "resumed"}


def change_entries(call: Invocation, numbers: Sequence[int], verb: str, *, as_json: bool) -> int:
    """Change entries, and return when the daemon has taken account of that: nothing runs that should not.

    Args:
        call: Of the command.
        numbers: The entries.
        verb: ``remove``, ``pause`` or ``resume``.
        as_json: Whether the answer is an object.

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
        elif one := queue.change(entry.id, _CHANGES[verb]):
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


def _paused(entry: Entry) -> Entry:
    if entry.state is EntryState.PAUSED:
        return entry
    if entry.state not in (EntryState.WAITING, EntryState.RUNNING):
        raise AutotuneError(
            f"entry {entry.number} is {entry.state.value}, and cannot be paused",
            remedy="Only one that waits or runs can; `autotune queue list` shows them.",
        )
    return replace(entry, state=EntryState.PAUSED)


def _resumed(entry: Entry) -> Entry:
    match entry.state:
        case EntryState.PAUSED:
            return replace(entry, state=EntryState.WAITING, retry_utc=None)
        case EntryState.FAILED:
            used_s = entry.used_s if entry.left_s > 0 else 0.0
            return replace(entry, state=EntryState.WAITING, kills=0, used_s=used_s, note="")
        case EntryState.HELD:
            return replace(entry, hold=None)  # the daemon applies it now
        case EntryState.WAITING | EntryState.RUNNING:
            return entry
        case _:
            raise AutotuneError(
                f"entry {entry.number} is done",
                remedy=f"Ask for another search: autotune queue add --config {entry.config}",
            )


_CHANGES: Mapping[str, Callable[[Entry], Entry]] = {"pause": _paused, "resume": _resumed}
