"""Ending of a search that the daemon started: what becomes of its entry. Pure, but for reading the answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.daemon.queue.entry import Entry, EntryState, Fingerprint, Hold, SearchAnswerSummary
from autotune.durations import format_duration
from autotune.files import open_regular

LEAST_REST_S = 20.0
"""Rest of a budget that is not worth another start."""

MOST_KILLS = 3
"""Number of searches that end without a word before the entry is given up."""

MOST_REPLANS = 2
"""Number of times that a search is made again because the config was edited meanwhile."""

_RETRY_S = 60.0
_PASSING = ("study_busy", "gpu", "storage_away", "code_changed")
"""Kinds of errors that pass by themselves: somebody is at work who will be done."""

_MOST_BYTES = 16 << 20


class Left(StrEnum):
    """Reason for which the daemon itself ended a search."""

    SOMEBODY_CAME = "somebody came"
    TOLD = "told"  # paused or removed by the user


@dataclass(frozen=True, kw_only=True)
class SearchEnding:
    """Ending of one search.

    Attributes:
        exit_code: Its exit code, negative for a signal; None where it is not known: another daemon had started it.
        answer: The object that it printed; None if there is none.
        used_s: Time that it took.
        left: Reason for which the daemon ended it; None if it did not.
        why_left: Who came, in words.
        fingerprint: Of config and code, at the end.
    """

    exit_code: int | None
    answer: Mapping[str, Any] | None
    used_s: float
    left: Left | None = None
    why_left: str = ""
    fingerprint: Fingerprint

    @property
    def error(self) -> Mapping[str, Any]:
        """Return the error that it ended with; empty if there is none."""
        error = (self.answer or {}).get("error")
        return error if isinstance(error, Mapping) else {}

    @property
    def verdict(self) -> str | None:
        """Return its verdict; None if it has none."""
        verdict = (self.answer or {}).get("verdict")
        return verdict if isinstance(verdict, str) else None

    @property
    def was_interrupted(self) -> bool:
        """True if it ended before its time, so that the rest of its budget is still of use."""
        if self.left is not None or self.answer is None:
            return True
        return bool(self.answer.get("interrupted")) or self.error.get("kind") == "interrupted"


def read_answer(path: Path) -> Mapping[str, Any] | None:
    """Return the object that a search printed into a file; None if there is none, or not all of it."""
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def entry_after(entry: Entry, ending: SearchEnding, now: datetime) -> Entry:
    """Return an entry after its search has ended; a better answer that may be applied makes it *due* for that.

    Args:
        entry: As it is now; its user may have paused it meanwhile.
        ending: The ending.
        now: The time in UTC.
    """
    used_s = min(entry.budget_s, entry.used_s + ending.used_s)
    entry = replace(entry, owner=None, running_s=0.0, used_s=used_s)
    if entry.state is not EntryState.RUNNING:
        return entry
    if ending.exit_code not in (None, 0, 1, 130, 143) and ending.left is None and ending.exit_code > 0:
        return _failed(entry, ending)
    if ending.error and not ending.verdict:
        return _after_error(entry, ending, now)
    if ending.was_interrupted:
        return _after_interruption(entry, ending)
    if ending.fingerprint.config_sha256 != entry.fingerprint.config_sha256 and entry.replans < MOST_REPLANS:
        what = "was edited" if ending.fingerprint.config_sha256 else "went away"
        return replace(
            entry,
            state=EntryState.WAITING,
            used_s=0.0,
            replans=entry.replans + 1,
            fingerprint=ending.fingerprint,
            note=f"the config {what} while it was searched; the search is made again",
        )
    return _done(entry, ending)


def summary_of(answer: Mapping[str, Any]) -> SearchAnswerSummary:
    """Return what the queue shows of an answer that has a verdict."""
    speedup = answer.get("speedup")
    ratio = None
    if isinstance(speedup, Mapping):
        ratio = (float(speedup["ratio"]), float(speedup["low"]), float(speedup["high"]))
    return SearchAnswerSummary(verdict=str(answer["verdict"]), ratio=ratio)


def _after_error(entry: Entry, ending: SearchEnding, now: datetime) -> Entry:
    kind = ending.error.get("kind")
    if kind == "interrupted":
        return _after_interruption(entry, ending)
    if kind in _PASSING:
        retry = now + timedelta(seconds=_RETRY_S)
        return replace(
            entry,
            state=EntryState.WAITING,
            retry_utc=retry.isoformat(timespec="seconds"),
            note=str(ending.error.get("message")),
        )
    return _failed(entry, ending)


def _after_interruption(entry: Entry, ending: SearchEnding) -> Entry:
    used = f"{format_duration(entry.left_s)} of {format_duration(entry.budget_s)} is left"
    note = f"left because {ending.why_left}; {used}" if ending.why_left else f"it was ended early; {used}"
    # Where nobody knows how it ended the daemon was gone, too: a machine that is restarted every day breaks no trainer.
    was_killed = ending.left is None and ending.answer is None and ending.exit_code is not None
    entry = replace(entry, kills=entry.kills + was_killed, note=note)
    if entry.kills >= MOST_KILLS:
        return replace(entry, state=EntryState.FAILED, note=f"its search ended {entry.kills} times without a word")
    if entry.left_s >= LEAST_REST_S:
        return replace(entry, state=EntryState.WAITING)
    if ending.verdict:
        return _done(entry, ending)
    return replace(entry, state=EntryState.FAILED, note="its budget was used up, and there is no answer")


def _done(entry: Entry, ending: SearchEnding) -> Entry:
    assert ending.answer is not None, "what has a verdict has an answer"
    is_due = ending.verdict == "better" and bool(entry.apply)
    return replace(
        entry,
        state=EntryState.HELD if is_due else EntryState.DONE,
        hold=Hold.DUE if is_due else None,
        answer=summary_of(ending.answer),
        note=str(ending.answer.get("why", "")),
    )


def _failed(entry: Entry, ending: SearchEnding) -> Entry:
    error = ending.error
    said = [str(error[name]) for name in ("where", "message", "remedy") if error.get(name)]
    note = ": ".join(said[:2]) + (f" {said[2]}" if said[2:] else "") if said else f"exit code {ending.exit_code}"
    return replace(entry, state=EntryState.FAILED, note=note)
