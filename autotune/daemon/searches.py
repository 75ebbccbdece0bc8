"""Searches of the daemon: started, watched and ended, one at a time, and what their ends mean for the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from autotune.clock import Clock, format_duration
from autotune.daemon.advice import Advice, Adviser, Tell
from autotune.daemon.queue import (
    ApplyScope,
    EntryState,
    Fingerprint,
    Hold,
    Queue,
    QueueEntry,
    SearchAnswerSummary,
    config_sha256,
    fingerprint,
)
from autotune.errors import AutotuneError
from autotune.files import create_private, json_object, read_beginning
from autotune.records import CONFIRMED
from autotune.trial.children import OWN_COMMAND, SearchChild
from autotune.trial.process_identity import is_gone, is_here

_HEARTBEAT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RunningSearch:
    """Search that runs.

    Attributes:
        started_s: When it was started, on the clock's monotonic time.
    """

    entry: QueueEntry
    child: SearchChild
    started_s: float


class Searches:
    """Searches of one daemon.

    Args:
        advising: Makes advice of their answers.

    Attributes:
        running: The search that runs; None while none does.
        orphan: Entry whose search an earlier daemon started, and that has not ended yet; None if there is none.
    """

    def __init__(self, queue: Queue, advising: Adviser, clock: Clock, tell: Tell) -> None:
        self._queue = queue
        self._advising = advising
        self._clock = clock
        self._tell = tell
        self._why_left: str | None = None
        self._heartbeat_s = 0.0
        self.running: RunningSearch | None = None
        self.orphan: QueueEntry | None = None

    @property
    def busy_with(self) -> QueueEntry | None:
        """Entry that no other search may run beside; None if there is none."""
        return self.running.entry if self.running else self.orphan

    @property
    def is_leaving(self) -> bool:
        """True while the search that runs is being ended."""
        return self.running is not None and self._why_left is not None

    def start(self, entry: QueueEntry) -> None:
        now = fingerprint(entry.configs)
        if now.config_sha256 is None:
            again = f"`autotune queue resume {entry.number}` tries again"
            self._fail(entry, f"{entry.config} cannot be read any more; {again}")
            return
        if differences := entry.fingerprint.differences(now):
            why = "; ".join(differences)
            self._tell("replanned", f"{entry.name}: since it was queued, {why}; planned anew", entry=entry.number)
        try:
            create_private(self._queue.answer(entry))  # that of an earlier start must not be taken for this one's
            started = self._queue.change(entry.id, lambda one: _begun(one, now))
            if started is None or started.state is not EntryState.RUNNING:
                return  # somebody has removed or paused it at this moment
            child = SearchChild.start(
                (*OWN_COMMAND, *search_arguments(started)),
                cwd=Path(entry.cwd),
                env=entry.environment,
                output=self._queue.answer(entry),
                log=self._queue.log(entry),
                clock=self._clock,
            )
        except (AutotuneError, OSError) as error:
            why = str(error) if isinstance(error, AutotuneError) else f"its search cannot be started: {error}"
            self._fail(entry, " ".join(why.splitlines()))
            return
        self.running = RunningSearch(entry=started, child=child, started_s=self._clock.now_s())
        self._queue.change(entry.id, lambda one: replace(one, owner=child.identity))
        text = f"{entry.name}: search of {entry.config} starts, {format_duration(started.left_s)} of budget"
        self._tell("search_started", text, entry=entry.number, config=entry.config)

    def tick(self) -> None:
        """Look after the search that runs; where none does, after what an earlier daemon has left."""
        if self.running is not None:
            self._watch(self.running)
        else:
            self._look_for_orphan()

    def leave(self, why: str) -> None:
        """Begin to end the search that runs; nothing happens if it is being ended already."""
        if self.running is not None and self._why_left is None:
            self._why_left = why
            self.running.child.leave(why)
            entry = self.running.entry
            self._tell("leaving", f"{entry.name}: search is ended: {why}", entry=entry.number, why=why)

    def close(self) -> None:
        """Let go of the search that runs: it ends after its running trial."""
        if self.running is not None:
            self.running.child.finish_trial()

    def _look_for_orphan(self) -> None:
        """Find the search of an earlier daemon: it ends by itself, and then its entry is queued again."""
        before, self.orphan = self.orphan, None
        for entry in self._queue.entries():
            was_about_to_start = entry.owner is None and entry.state is EntryState.RUNNING
            # Of a process in another container nothing can be known: the next search waits for the study that it holds.
            if was_about_to_start or (entry.owner is not None and (not is_here(entry.owner) or is_gone(entry.owner))):
                self._conclude(entry, exit_code=None, used_s=entry.running_s)
            elif entry.owner is not None:
                self.orphan = entry
        if self.orphan is not None and before is None:
            pid, number = (self.orphan.owner or {}).get("pid"), self.orphan.number
            text = f"{self.orphan.name}: the search of an earlier daemon (process {pid}) ends after its running trial"
            self._tell("search_found", text, entry=number)

    def _watch(self, running: RunningSearch) -> None:
        ended = running.child.poll()  # first: to leave goes on, whatever is wrong with the queue
        used_s = self._clock.now_s() - running.started_s
        entry = next((one for one in self._queue.entries() if one.id == running.entry.id), None)
        if ended is None:
            if entry is None or entry.state is not EntryState.RUNNING:
                self.leave("it was removed" if entry is None else f"it is {entry.state.value}")
            elif used_s - self._heartbeat_s >= _HEARTBEAT_S:
                self._heartbeat_s = used_s
                self._queue.change(entry.id, lambda one: replace(one, running_s=used_s))
            return
        self.running, self._heartbeat_s = None, 0.0
        why_left, self._why_left = self._why_left, None
        if entry is not None:
            self._conclude(entry, exit_code=ended.code, used_s=used_s, why_left=why_left)

    def _conclude(
        self, entry: QueueEntry, *, exit_code: int | None, used_s: float, why_left: str | None = None
    ) -> None:
        answer = read_answer(self._queue.answer(entry))
        elapsed_s = answer.get("elapsed_s")
        ending = SearchEnding(
            exit_code=exit_code,
            answer=answer,
            used_s=max(used_s, elapsed_s) if isinstance(elapsed_s, float) else used_s,
            why_left=why_left,
            config_sha256=config_sha256(entry.configs),
        )
        now = self._clock.utc()
        expected = entry_after(entry, ending, now)
        advice = None
        if expected.answer is not None and expected.answer.is_confirmed:
            advice = self._advising.keep(expected, answer)  # before the entry is done: it is never done without
        after = self._queue.change(entry.id, lambda one: _with_advice(entry_after(one, ending, now), advice))
        if after is None:
            return
        word = "done" if after.hold is Hold.DUE else after.state.value
        text = f"{after.name}: {word}" + (f": {after.note}" if after.note else "")
        self._tell("search_ended", text, entry=after.number, state=after.state.value)
        if advice is not None and after.answer is not None:
            self._advising.advise(after, advice)

    def _fail(self, entry: QueueEntry, why: str) -> None:
        self._queue.change(entry.id, lambda one: replace(one, state=EntryState.FAILED, note=why, owner=None))
        self._tell("search_failed", f"{entry.name}: {why}", entry=entry.number)


def _with_advice(entry: QueueEntry, advice: Advice | None) -> QueueEntry:
    if entry.answer is None or not entry.answer.is_confirmed:
        return entry
    if advice is None:
        return replace(entry, state=EntryState.FAILED, hold=None, note="the answer of its search cannot be understood")
    return replace(entry, answer=replace(entry.answer, advice=advice.id))


def search_arguments(entry: QueueEntry) -> tuple[str, ...]:
    """Return the arguments of ``autotune`` for the search of an entry, with what is left of its budget."""
    budget = f"{max(1.0, entry.left_s):.0f}s"
    return (
        *("search", "--config", entry.config, "--budget", budget, "--json", "--no-apply"),
        *_within_scope(entry.apply),
        *entry.options,
    )


def _begun(entry: QueueEntry, fingerprint: Fingerprint) -> QueueEntry:
    if entry.state is not EntryState.WAITING:
        return entry
    return replace(entry, state=EntryState.RUNNING, fingerprint=fingerprint, retry_utc=None, note="")


def _within_scope(scopes: Collection[ApplyScope]) -> tuple[str, ...]:
    if not scopes or ApplyScope.BATCH in scopes:
        return ()
    return ("--batch", "same") if ApplyScope.PRECISION in scopes else ("--same-training",)


LEAST_REST_S = 20.0
"""Rest of a budget that is not worth another start."""

MOST_KILLS = 3
"""Number of searches that end without a word before the entry is given up."""

MOST_REPLANS = 2
"""Number of times that a search is made again because the config was edited meanwhile."""

_PASSING = ("study_busy", "gpu", "storage_away", "code_changed")
"""Kinds of errors that pass by themselves: somebody is at work who will be done."""


@dataclass(frozen=True, kw_only=True)
class SearchEnding:
    """Ending of one search.

    Attributes:
        exit_code: Its exit code, negative for a signal; None where it is not known: another daemon had started it.
        answer: The object that it printed; empty if there is none.
        why_left: Reason for which the daemon ended it, in words; None if it did not.
        config_sha256: Hash of its config now.
    """

    exit_code: int | None
    answer: Mapping[str, Any]
    used_s: float
    why_left: str | None = None
    config_sha256: str | None

    @property
    def error(self) -> Mapping[str, Any]:
        error = self.answer.get("error")
        return error if isinstance(error, Mapping) else {}

    @property
    def verdict(self) -> str | None:
        verdict = self.answer.get("verdict")
        return verdict if isinstance(verdict, str) else None

    @property
    def was_interrupted(self) -> bool:
        """True if it ended before its time, so that the rest of its budget is still of use."""
        if self.why_left is not None or not self.answer:
            return True
        return bool(self.answer.get("interrupted")) or self.error.get("kind") == "interrupted"


def read_answer(path: Path) -> dict[str, Any]:
    """Return the object that a search printed into a file; an empty one if there is none, or not all of it."""
    return json_object(read_beginning(path, 16 << 20))


def entry_after(entry: QueueEntry, ending: SearchEnding, now: datetime) -> QueueEntry:
    """Return an entry after its search has ended; a better answer that may be applied makes it *due* for that.

    Args:
        entry: As it is now; its user may have paused it meanwhile.
    """
    entry = replace(entry, owner=None, running_s=0.0, used_s=min(entry.budget_s, entry.used_s + ending.used_s))
    if entry.state is not EntryState.RUNNING:
        return entry
    code, error = ending.exit_code, ending.error if not ending.verdict else {}
    if code is not None and code > 1 and code not in (130, 143) and ending.why_left is None:
        return _failed(entry, ending)
    if error.get("kind") in _PASSING:
        retry_utc = (now + timedelta(seconds=60.0)).isoformat(timespec="seconds")
        return replace(entry, state=EntryState.WAITING, retry_utc=retry_utc, note=str(error.get("message")))
    if error and error.get("kind") != "interrupted":
        return _failed(entry, ending)
    if ending.was_interrupted:
        return _after_interruption(entry, ending)
    if ending.config_sha256 != entry.fingerprint.config_sha256 and entry.replans < MOST_REPLANS:
        what = "was edited" if ending.config_sha256 else "went away"
        return replace(
            entry,
            state=EntryState.WAITING,
            used_s=0.0,
            replans=entry.replans + 1,
            fingerprint=replace(entry.fingerprint, config_sha256=ending.config_sha256),
            note=f"the config {what} while it was searched; the search is made again",
        )
    return _done(entry, ending)


def _after_interruption(entry: QueueEntry, ending: SearchEnding) -> QueueEntry:
    left = f"{format_duration(entry.left_s)} of {format_duration(entry.budget_s)} is left"
    note = f"left because {ending.why_left}; {left}" if ending.why_left else f"it was ended early; {left}"
    # Where nobody knows how it ended the daemon was gone, too: a machine that is restarted every day breaks no trainer.
    was_killed = ending.why_left is None and not ending.answer and ending.exit_code is not None
    entry = replace(entry, kills=entry.kills + was_killed, note=note)
    if entry.kills >= MOST_KILLS:
        return replace(entry, state=EntryState.FAILED, note=f"its search ended {entry.kills} times without a word")
    if entry.left_s >= LEAST_REST_S:
        return replace(entry, state=EntryState.WAITING)
    if ending.verdict:
        return _done(entry, ending)
    return replace(entry, state=EntryState.FAILED, note="its budget was used up, and there is no answer")


def _done(entry: QueueEntry, ending: SearchEnding) -> QueueEntry:
    answer, speedup = ending.answer, ending.answer.get("speedup")
    ratio = None
    if isinstance(speedup, Mapping):
        ratio = (float(speedup["ratio"]), float(speedup["low"]), float(speedup["high"]))
    is_due = ending.verdict in CONFIRMED and bool(entry.apply)
    return replace(
        entry,
        state=EntryState.HELD if is_due else EntryState.DONE,
        hold=Hold.DUE if is_due else None,
        answer=SearchAnswerSummary(verdict=str(ending.verdict), ratio=ratio),
        note=str(answer.get("why", "")),
    )


def _failed(entry: QueueEntry, ending: SearchEnding) -> QueueEntry:
    error = ending.error
    said = [str(error[name]) for name in ("where", "message", "remedy") if error.get(name)]
    note = ": ".join(said[:2]) + (f" {said[2]}" if said[2:] else "") if said else f"exit code {ending.exit_code}"
    return replace(entry, state=EntryState.FAILED, note=note)
