"""Section of the queue: what runs, what waits and for what, and what came of the rest."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from autotune.daemon.queue.entry import Entry, EntryState, Hold
from autotune.daemon.web.page_text import line

_MOST_OPEN = 60
_MOST_CLOSED = 20
_ACTIONS: Mapping[EntryState, tuple[str, ...]] = {
    EntryState.WAITING: ("pause", "remove"),
    EntryState.RUNNING: ("pause", "remove"),
    EntryState.PAUSED: ("resume", "remove"),
    EntryState.HELD: ("resume", "remove"),
    EntryState.FAILED: ("resume", "remove"),
    EntryState.DONE: ("remove",),
}
"""What may be done with an entry: as ``autotune queue pause``, ``resume`` and ``remove`` have it."""


class EntryPart(TypedDict):
    """Entry of the queue; `actions` is empty on a page that only shows."""

    id: str
    number: int
    state: str
    config: str
    budget_s: float
    used_s: float
    start: str
    reason: str | None
    note: str
    gain: tuple[float, float, float] | None
    advice: str | None
    added_utc: str
    actions: list[str]


class QueuePart(TypedDict):
    """Section of the queue: the open entries in their order, then the closed ones, newest first."""

    entries: list[EntryPart]
    left_out: int
    trouble: str | None


def queue_section(
    entries: Sequence[Entry], reasons: Mapping[str, str], *, trouble: str | None, actions: bool
) -> QueuePart:
    """Return the section of the queue.

    Args:
        entries: The queue.
        reasons: By id, what an entry waits for.
        trouble: Why the queue cannot be read, in words; None if it can.
        actions: Whether the page may change something.
    """
    opened = [entry for entry in entries if entry.state.is_open]
    closed = [entry for entry in reversed(entries) if not entry.state.is_open]
    shown = [*opened[:_MOST_OPEN], *closed[:_MOST_CLOSED]]
    return QueuePart(
        entries=[_entry(entry, reasons, actions) for entry in shown],
        left_out=len(entries) - len(shown),
        trouble=line(trouble),
    )


def _entry(entry: Entry, reasons: Mapping[str, str], actions: bool) -> EntryPart:
    answer = entry.answer
    says_itself = entry.state is EntryState.HELD and entry.hold is not Hold.EDITED and entry.note
    return EntryPart(
        id=entry.id,
        number=entry.number,
        state=entry.state.value,
        config=line(entry.config) or "",
        budget_s=entry.budget_s,
        used_s=round(min(entry.budget_s, entry.used_s + entry.running_s)),
        start=str(entry.start),
        reason=line(reasons.get(entry.id)) if entry.state.is_open and not says_itself else None,
        note=line(entry.note, 400) or "",
        gain=answer.ratio if answer and answer.verdict == "better" else None,
        advice=line(answer.advice, 20) if answer else None,
        added_utc=entry.added_utc,
        actions=list(_ACTIONS[entry.state]) if actions else [],
    )
