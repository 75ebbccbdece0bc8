"""Changes of the queue's entries that people ask for: from a terminal, or on the page."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from autotune.daemon.queue.entry import ApplyScope, Entry, EntryState
from autotune.errors import AutotuneError

ALL_SCOPES = frozenset(ApplyScope)


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


def accepted(entry: Entry) -> Entry:
    """Return an entry whose advice its user wants to be applied, having seen it; the daemon does that now."""
    if entry.state not in (EntryState.DONE, EntryState.HELD):
        raise AutotuneError(
            f"entry {entry.number}, which gave it, is {entry.state.value} again", remedy="Wait for its new answer."
        )
    return replace(entry, state=EntryState.HELD, hold=None, apply=ALL_SCOPES, note="applying was asked for")


CHANGES: Mapping[str, Callable[[Entry], Entry]] = {"pause": _paused, "resume": _resumed}
"""Changes of an entry that a person asks for, for `Queue.change`; each refuses by raising."""
