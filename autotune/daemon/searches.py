"""Searches of the daemon, one at a time, and their entries afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from autotune.clock import Clock, format_duration
from autotune.daemon.advice import Advice, Adviser, Publish
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
    """Search that this daemon started."""

    entry: QueueEntry
    child: SearchChild
    started_s: float


class Searches:
    """Searches of one daemon; `orphan` is the entry of one that an earlier daemon started."""

    def __init__(self, queue: Queue, adviser: Adviser, clock: Clock, publish: Publish) -> None:
        self._queue = queue
        self._adviser = adviser
        self._clock = clock
        self._publish = publish
        self._stop_reason: str | None = None
        self._heartbeat_s = 0.0
        self.running: RunningSearch | None = None
        self.orphan: QueueEntry | None = None

    @property
    def busy_with(self) -> QueueEntry | None:
        return self.running.entry if self.running else self.orphan

    @property
    def is_stopping(self) -> bool:
        return self.running is not None and self._stop_reason is not None

    def start(self, entry: QueueEntry) -> None:
        now = fingerprint(entry.configs)
        if now.config_sha256 is None:
            again = f"to retry: `autotune queue resume {entry.number}`"
            self._fail(entry, f"{entry.config} is no longer readable; {again}")
            return
        if differences := entry.fingerprint.differences(now):
            text = f"{entry.name}: replanned; changes since it was queued: {'; '.join(differences)}"
            self._publish("replanned", text, entry=entry.number)
        try:
            create_private(self._queue.answer(entry))  # discards the answer of an earlier search
            started = self._queue.change(entry.id, lambda one: _marked_running(one, now))
            if started is None or started.state is not EntryState.RUNNING:
                return  # removed or paused in the meantime
            child = SearchChild.start(
                (*OWN_COMMAND, *search_arguments(started)),
                cwd=Path(entry.cwd),
                env=entry.environment,
                output=self._queue.answer(entry),
                log=self._queue.log(entry),
                clock=self._clock,
            )
        except (AutotuneError, OSError) as error:
            why = str(error) if isinstance(error, AutotuneError) else f"the search cannot be started: {error}"
            self._fail(entry, " ".join(why.splitlines()))
            return
        self.running = RunningSearch(entry=started, child=child, started_s=self._clock.now_s())
        self._queue.change(entry.id, lambda one: replace(one, owner=child.identity))
        text = f"{entry.name}: searching {entry.config}, {format_duration(started.left_s)} of budget left"
        self._publish("search_started", text, entry=entry.number, config=entry.config)

    def tick(self) -> None:
        """Check the running search, or else that of an earlier daemon."""
        if self.running is not None:
            self._watch(self.running)
        else:
            self._find_orphan()

    def stop(self, why: str) -> None:
        """Begin to stop the running search, if any."""
        if self.running is not None and self._stop_reason is None:
            self._stop_reason = why
            self.running.child.leave()
            entry = self.running.entry
            self._publish("leaving", f"{entry.name}: stopping the search: {why}", entry=entry.number, why=why)

    def close(self) -> None:
        """Let the running search end after its current trial."""
        if self.running is not None:
            self.running.child.finish_trial()

    def _find_orphan(self) -> None:
        """Find the search of an earlier daemon; queue its entry again once it has ended."""
        before, self.orphan = self.orphan, None
        for entry in self._queue.entries():
            was_about_to_start = entry.owner is None and entry.state is EntryState.RUNNING
            # A process in another container can't be checked; the next search waits for the lock of its study.
            if was_about_to_start or (entry.owner is not None and (not is_here(entry.owner) or is_gone(entry.owner))):
                self._conclude(entry, exit_code=None, used_s=entry.running_s)
            elif entry.owner is not None:
                self.orphan = entry
        if self.orphan is not None and before is None:
            pid, number = (self.orphan.owner or {}).get("pid"), self.orphan.number
            text = f"{self.orphan.name}: the search of an earlier daemon (process {pid}) ends after its current trial"
            self._publish("search_found", text, entry=number)

    def _watch(self, running: RunningSearch) -> None:
        ended = running.child.poll()  # first, so that stopping proceeds if the queue is unreadable
        used_s = self._clock.now_s() - running.started_s
        entry = next((one for one in self._queue.entries() if one.id == running.entry.id), None)
        if ended is None:
            if entry is None or entry.state is not EntryState.RUNNING:
                self.stop("it was removed" if entry is None else f"it is {entry.state.value}")
            elif used_s - self._heartbeat_s >= _HEARTBEAT_S:
                self._heartbeat_s = used_s
                self._queue.change(entry.id, lambda one: replace(one, running_s=used_s))
            return
        self.running, self._heartbeat_s = None, 0.0
        stop_reason, self._stop_reason = self._stop_reason, None
        if entry is not None:
            self._conclude(entry, exit_code=ended.code, used_s=used_s, stop_reason=stop_reason)

    def _conclude(
        self, entry: QueueEntry, *, exit_code: int | None, used_s: float, stop_reason: str | None = None
    ) -> None:
        answer = read_answer(self._queue.answer(entry))
        elapsed_s = answer.get("elapsed_s")
        ending = SearchEnding(
            exit_code=exit_code,
            answer=answer,
            used_s=max(used_s, elapsed_s) if isinstance(elapsed_s, float) else used_s,
            stop_reason=stop_reason,
            config_sha256=config_sha256(entry.configs),
        )
        now = self._clock.utc()
        expected = entry_after(entry, ending, now)
        advice = None
        if expected.answer is not None and expected.answer.is_confirmed:
            advice = self._adviser.keep(expected, answer)  # before the entry is marked as done
        after = self._queue.change(entry.id, lambda one: _with_advice(entry_after(one, ending, now), advice))
        if after is None:
            return
        word = "done" if after.hold is Hold.DUE else after.state.value
        text = f"{after.name}: {word}" + (f": {after.note}" if after.note else "")
        self._publish("search_ended", text, entry=after.number, state=after.state.value)
        if advice is not None and after.answer is not None:
            self._adviser.advise(after, advice)

    def _fail(self, entry: QueueEntry, why: str) -> None:
        self._queue.change(entry.id, lambda one: replace(one, state=EntryState.FAILED, note=why, owner=None))
        self._publish("search_failed", f"{entry.name}: {why}", entry=entry.number)


def _with_advice(entry: QueueEntry, advice: Advice | None) -> QueueEntry:
    if entry.answer is None or not entry.answer.is_confirmed:
        return entry
    if advice is None:
        return replace(entry, state=EntryState.FAILED, hold=None, note="the answer of its search is invalid")
    return replace(entry, answer=replace(entry.answer, advice=advice.id))


def search_arguments(entry: QueueEntry) -> tuple[str, ...]:
    """Return the arguments of ``autotune`` for an entry's remaining budget."""
    budget = f"{max(1.0, entry.left_s):.0f}s"
    scope: tuple[str, ...] = ()
    if entry.apply and ApplyScope.BATCH not in entry.apply:
        scope = ("--batch", "same") if ApplyScope.PRECISION in entry.apply else ("--same-training",)
    return ("search", "--config", entry.config, "--budget", budget, "--json", "--no-apply", *scope, *entry.options)


def _marked_running(entry: QueueEntry, fingerprint: Fingerprint) -> QueueEntry:
    if entry.state is not EntryState.WAITING:
        return entry
    return replace(entry, state=EntryState.RUNNING, fingerprint=fingerprint, retry_utc=None, note="")


LEAST_REST_S = 20.0
"""Minimum remaining budget for another start."""

MOST_KILLS = 3
"""Number of searches without an answer after which the entry fails."""

MOST_REPLANS = 2
"""Number of times a search is repeated because the config was edited during it."""

_TRANSIENT = ("study_busy", "gpu", "storage_away", "code_changed")
"""Kinds of errors after which the search is retried, because they resolve on their own."""


@dataclass(frozen=True, kw_only=True)
class SearchEnding:
    """Ending of a search.

    Attributes:
        exit_code: Negative for a signal; None if an earlier daemon had started it.
        answer: Printed JSON object; empty if none.
        config_sha256: Of its config now.
    """

    exit_code: int | None
    answer: Mapping[str, Any]
    used_s: float
    stop_reason: str | None = None
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
        if self.stop_reason is not None or not self.answer:
            return True
        return bool(self.answer.get("interrupted")) or self.error.get("kind") == "interrupted"


def read_answer(path: Path) -> dict[str, Any]:
    """Return a search's JSON object; empty if missing or truncated."""
    return json_object(read_beginning(path, 16 << 20))


def entry_after(entry: QueueEntry, ending: SearchEnding, now: datetime) -> QueueEntry:
    """Return an entry after its search; it may have been paused meanwhile."""
    entry = replace(entry, owner=None, running_s=0.0, used_s=min(entry.budget_s, entry.used_s + ending.used_s))
    if entry.state is not EntryState.RUNNING:
        return entry
    code, error = ending.exit_code, ending.error if not ending.verdict else {}
    if code is not None and code > 1 and code not in (130, 143) and ending.stop_reason is None:
        return _failed(entry, ending)
    if error.get("kind") in _TRANSIENT:
        retry_utc = (now + timedelta(seconds=60.0)).isoformat(timespec="seconds")
        return replace(entry, state=EntryState.WAITING, retry_utc=retry_utc, note=str(error.get("message")))
    if error and error.get("kind") != "interrupted":
        return _failed(entry, ending)
    if ending.was_interrupted:
        return _after_interruption(entry, ending)
    if ending.config_sha256 != entry.fingerprint.config_sha256 and entry.replans < MOST_REPLANS:
        what = "was edited" if ending.config_sha256 else "became unreadable"
        return replace(
            entry,
            state=EntryState.WAITING,
            used_s=0.0,
            replans=entry.replans + 1,
            fingerprint=replace(entry.fingerprint, config_sha256=ending.config_sha256),
            note=f"the config {what} during the search; repeating the search",
        )
    return _done(entry, ending)


def _after_interruption(entry: QueueEntry, ending: SearchEnding) -> QueueEntry:
    left = f"{format_duration(entry.left_s)} of {format_duration(entry.budget_s)} left"
    note = f"stopped: {ending.stop_reason}; {left}" if ending.stop_reason else f"ended early; {left}"
    # Without an exit code the daemon had died too, such as at a reboot, which says nothing about the trainer.
    was_killed = ending.stop_reason is None and not ending.answer and ending.exit_code is not None
    entry = replace(entry, kills=entry.kills + was_killed, note=note)
    if entry.kills >= MOST_KILLS:
        return replace(entry, state=EntryState.FAILED, note=f"its search ended {entry.kills} times without an answer")
    if entry.left_s >= LEAST_REST_S:
        return replace(entry, state=EntryState.WAITING)
    if ending.verdict:
        return _done(entry, ending)
    return replace(entry, state=EntryState.FAILED, note="its budget was used up without an answer")


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
    parts = [str(error[name]) for name in ("where", "message", "remedy") if error.get(name)]
    note = ": ".join(parts[:2]) + (f" {parts[2]}" if parts[2:] else "") if parts else f"exit code {ending.exit_code}"
    return replace(entry, state=EntryState.FAILED, note=note)
