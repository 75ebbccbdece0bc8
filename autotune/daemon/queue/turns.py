"""Turns of the queue: which entry is next, and what each of the others waits for. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from autotune.daemon.queue.entry import Entry, EntryState, Hold


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Decision over the queue at one moment.

    Attributes:
        next: The entry to start now; None if none may.
        reasons: By id, what each open entry waits for, in words.
        wants_idle: Whether an entry waits for nothing but an idle machine.
    """

    next: Entry | None
    reasons: Mapping[str, str]
    wants_idle: bool


def decide_turns(
    entries: Sequence[Entry], *, now: datetime, running: Entry | None, why_not_idle: Callable[[Entry], str | None]
) -> Turns:
    """Decide which entry is next: in the order in which they were added, those left out that cannot start yet.

    Args:
        entries: The queue.
        now: The time, with its offset.
        running: The entry whose search runs; None if there is none. There is one search at a time on a machine.
        why_not_idle: Returns why the machine is not idle for an entry; None if it is.
    """
    reasons: dict[str, str] = {}
    chosen: Entry | None = None
    wants_idle = False
    for entry in entries:
        if entry.state is not EntryState.WAITING:
            if reason := _standing(entry):
                reasons[entry.id] = reason
        elif reason := _waits_for_time(entry, now):
            reasons[entry.id] = reason
        elif running is not None or chosen is not None:
            reasons[entry.id] = f"one search at a time: {(running or chosen or entry).number} is before it"
        elif entry.start.needs_idle and (reason := why_not_idle(entry) or ""):
            reasons[entry.id] = f"waits for an idle machine: {reason}"
            wants_idle = True
        else:
            chosen = entry
            reasons[entry.id] = "starts now"
    return Turns(next=chosen, reasons=reasons, wants_idle=wants_idle)


def _standing(entry: Entry) -> str:
    """Return what an entry waits for that is not waiting for its turn; empty if it waits for nothing."""
    match entry.state, entry.hold:
        case EntryState.PAUSED, _:
            return f"paused; `autotune queue resume {entry.number}`"
        case EntryState.HELD, Hold.DUE:
            return "better; applied now"
        case EntryState.HELD, Hold.TRAINING | None:
            return "better; applied when the training that uses the config has ended"
        case EntryState.HELD, _:
            return f"better; not applied because somebody has changed a value: `autotune queue resume {entry.number}`"
        case EntryState.RUNNING, _:
            return "its search runs"
        case _:
            return ""


def _waits_for_time(entry: Entry, now: datetime) -> str:
    if at := entry.start.waits_for_time(now):
        return f"waits for {at}"
    if entry.retry_utc is not None and now < (retry := datetime.fromisoformat(entry.retry_utc)):
        return f"tried again at {retry.astimezone():%H:%M:%S}"
    return ""
