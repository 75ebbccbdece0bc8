"""Searches of the daemon: started, watched and ended, one at a time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.daemon.advice import Advice
from autotune.daemon.advising import Advising
from autotune.daemon.queue.entry import ApplyScope, Entry, EntryState, Fingerprint, Hold
from autotune.daemon.queue.fingerprint import fingerprint
from autotune.daemon.queue.queue import Queue
from autotune.daemon.search_ending import Left, SearchEnding, entry_after, read_answer
from autotune.daemon.tell import Tell
from autotune.durations import format_duration
from autotune.errors import AutotuneError
from autotune.files import create_private
from autotune.process.own_command import OWN_COMMAND
from autotune.process.owner import is_gone, is_here
from autotune.process.search_child import SearchChild

_HEARTBEAT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RunningSearch:
    """Search that runs.

    Attributes:
        entry: Its entry, as it was when it was started.
        child: Its process.
        started_s: When it was started, on the clock's monotonic time.
    """

    entry: Entry
    child: SearchChild
    started_s: float


class Searches:
    """Searches of one daemon.

    Args:
        queue: The queue.
        advising: Makes advice of their answers.
        clock: The machine's clock.
        tell: Told what happens.

    Attributes:
        running: The search that runs; None while none does.
        orphan: Entry whose search an earlier daemon started, and that has not ended yet; None if there is none.
    """

    def __init__(self, queue: Queue, advising: Advising, clock: Clock, tell: Tell) -> None:
        self._queue = queue
        self._advising = advising
        self._clock = clock
        self._tell = tell
        self._left: tuple[Left, str] | None = None
        self._heartbeat_s = 0.0
        self.running: RunningSearch | None = None
        self.orphan: Entry | None = None

    @property
    def busy_with(self) -> Entry | None:
        """Entry that no other search may run beside; None if there is none."""
        return self.running.entry if self.running else self.orphan

    @property
    def is_leaving(self) -> bool:
        """True while the search that runs is being ended."""
        return self.running is not None and self._left is not None

    @property
    def is_leaving_for_somebody(self) -> bool:
        """True while that is because somebody came."""
        return self._left is not None and self._left[0] is Left.SOMEBODY_CAME

    def start(self, entry: Entry) -> None:
        """Start the search of an entry."""
        now = fingerprint(entry.configs)
        if now.config_sha256 is None:
            again = f"`autotune queue resume {entry.number}` tries again"
            self._fail(entry, f"{entry.config} cannot be read any more; {again}")
            return
        if differences := entry.fingerprint.differences(now):
            why = "; ".join(differences)
            self._tell("replanned", f"{entry.name}: since it was queued, {why}; planned anew", entry=entry.number)
        started = entry
        try:
            create_private(self._queue.answer(entry))  # that of an earlier start must not be taken for this one's
            changed = self._queue.change(entry.id, lambda one: _begun(one, now))
            if changed is None or changed.state is not EntryState.RUNNING:
                return  # somebody has removed or paused it at this moment
            started = changed
            child = SearchChild.start(
                (*OWN_COMMAND, *search_arguments(started)),
                cwd=Path(entry.cwd),
                env=entry.environment,
                output=self._queue.answer(entry),
                log=self._queue.log(entry),
                clock=self._clock,
            )
        except AutotuneError as error:
            self._fail(started, " ".join(str(error).splitlines()))
            return
        except OSError as error:
            self._fail(started, f"its search cannot be started: {error}")
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

    def leave(self, left: Left, why: str) -> None:
        """Begin to end the search that runs; nothing happens if it is being ended already."""
        if self.running is not None and self._left is None:
            self._left = left, why
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
            if was_about_to_start or (entry.owner is not None and _has_ended(entry.owner)):
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
                self.leave(Left.TOLD, "removed" if entry is None else entry.state.value)
            elif used_s - self._heartbeat_s >= _HEARTBEAT_S:
                self._heartbeat_s = used_s
                self._queue.change(entry.id, lambda one: replace(one, running_s=used_s))
            return
        self.running, self._heartbeat_s = None, 0.0
        left, self._left = self._left, None
        if entry is not None:
            self._conclude(entry, exit_code=ended.code, used_s=used_s, left=left)

    def _conclude(
        self, entry: Entry, *, exit_code: int | None, used_s: float, left: tuple[Left, str] | None = None
    ) -> None:
        answer = read_answer(self._queue.answer(entry))
        elapsed_s = answer.get("elapsed_s") if answer else None
        ending = SearchEnding(
            exit_code=exit_code,
            answer=answer,
            used_s=max(used_s, elapsed_s) if isinstance(elapsed_s, float) else used_s,
            left=left[0] if left else None,
            why_left=left[1] if left and left[0] is Left.SOMEBODY_CAME else "",
            fingerprint=fingerprint(entry.configs),
        )
        now = self._clock.utc()
        expected = entry_after(entry, ending, now)
        advice = None
        if ending.answer is not None and expected.answer is not None and expected.answer.verdict == "better":
            advice = self._advising.keep(expected, ending.answer)  # before the entry is done: it is never done without
        after = self._queue.change(entry.id, lambda one: _with_advice(entry_after(one, ending, now), advice))
        if after is None:
            return
        word = "done" if after.hold is Hold.DUE else after.state.value
        text = f"{after.name}: {word}" + (f": {after.note}" if after.note else "")
        self._tell("search_ended", text, entry=after.number, state=after.state.value)
        if advice is not None and after.answer is not None:
            self._advising.advise(after, advice)

    def _fail(self, entry: Entry, why: str) -> None:
        self._queue.change(entry.id, lambda one: replace(one, state=EntryState.FAILED, note=why, owner=None))
        self._tell("search_failed", f"{entry.name}: {why}", entry=entry.number)


def _with_advice(entry: Entry, advice: Advice | None) -> Entry:
    if entry.answer is None or entry.answer.verdict != "better":
        return entry
    if advice is None:
        return replace(entry, state=EntryState.FAILED, hold=None, note="the answer of its search cannot be understood")
    return replace(entry, answer=replace(entry.answer, advice=advice.id))


def search_arguments(entry: Entry) -> tuple[str, ...]:
    """Return the arguments of ``autotune`` for the search of an entry, with what is left of its budget."""
    separator = entry.options.index("--") if "--" in entry.options else len(entry.options)
    options, trainer = entry.options[:separator], entry.options[separator:]
    return (
        *("search", "--config", entry.config, "--budget", f"{max(1.0, entry.left_s):.0f}s", "--json", "--no-apply"),
        *_within_scope(entry.apply),
        *options,
        *trainer,
    )


def _begun(entry: Entry, fingerprint: Fingerprint) -> Entry:
    if entry.state is not EntryState.WAITING:
        return entry
    return replace(entry, state=EntryState.RUNNING, fingerprint=fingerprint, retry_utc=None, note="")


def _within_scope(scopes: Collection[ApplyScope]) -> tuple[str, ...]:
    """Return options that keep a search to what may be applied of it."""
    if not scopes or ApplyScope.BATCH in scopes:
        return ()
    return ("--batch", "same") if ApplyScope.PRECISION in scopes else ("--same-training",)


def _has_ended(owner: Mapping[str, Any]) -> bool:
    """Return whether a process that an earlier daemon started has ended; one from before a reboot has.

    Of one in another container nothing can be known. If it lives, it holds the study, and the next search waits for it.
    """
    return not is_here(owner) or is_gone(owner)
