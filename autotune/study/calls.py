"""Calls to the storage of a study in their own thread; a server may be temporarily unreachable."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from optuna.trial import FrozenTrial

from autotune.clock import SystemClock
from autotune.errors import StorageAway
from autotune.events import OnRemark
from autotune.study.claims import NO_OWNER, RENEWAL_S, LeaseWatch, Owner, uuid_of
from autotune.study.entry import UndeliveredTrials
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.storage.storage import Storage

Found = tuple[Sequence[tuple[int, FrozenTrial]], Mapping[str, Any]]
"""Trials of a study by number, and its attributes."""

_T = TypeVar("_T")
_OPENING_S = 30.0
_PATIENCE_S = 5.0  # for a server, in the middle of a search


class StorageCalls:
    """Calls to the storage of a study, and the finished trials that wait for a server.

    Args:
        renew: Regular call of the thread.
        delivered: Called with UUID and number of a trial once written; returns whether its record is known.

    Attributes:
        trials: Trials in the storage; used only in `thread`.
        leases: Leases of other processes; none lapses while the storage is unreachable.

    Raises:
        StudyError: The storage cannot be read or written; from every method that calls a function.
    """

    def __init__(
        self,
        name: str,
        where: str,
        owner: Owner,
        renew: Callable[[], bool],
        delivered: Callable[[Any, int], bool],
        remark: OnRemark,
    ) -> None:
        self.where = where
        self.leases = LeaseWatch(owner.clock, owner.is_gone)
        self._remark = remark
        self._owner = owner
        self.thread = StorageThread(f"storage of {name}", renew, RENEWAL_S)
        self._delivered = delivered
        self._retry_at_s: float | None = None  # None while reachable
        self._why_unavailable = ""
        self._posted: deque[tuple[Future[Any], FrozenTrial | None]] = deque()  # with the trials that they write
        self._renumbered: list[str] = []  # not reported yet
        self._caught_up = 0  # delayed trials that were written, not reported yet

    def open(self, name: str, storage: Storage, pending: Path | None, *, reads_only: bool) -> Found:
        """Open the storage; return its contents.

        Args:
            pending: File for trials while a server is unreachable; None to raise `StorageAway`.
        """

        def opened() -> Found:
            self.trials = OptunaTrials(name, storage, self.leases, reads_only=reads_only)
            return self.trials.expecting(self.trials.found), self.trials.expecting(self.trials.attributes)

        try:
            found = self.retry(lambda: self.thread.call(opened, _OPENING_S))
        except TimeoutError:
            raise _unreachable(f"the storage has not answered for {_OPENING_S:g} s", self.where) from None
        self.connection = self.trials.connection
        self.pending = UndeliveredTrials(pending, self.where) if pending and self.connection.is_remote else None
        self._missed = {uuid_of(trial) for trial in self.waiting}
        return found

    def retry(self, call: Callable[[], _T]) -> _T:
        """Make a call, with retries for a few seconds."""
        clock = self._owner.clock
        # long enough for a restarting server, short enough to report a wrong address soon
        over_s = clock.now_s() + 5.0
        while True:
            try:
                return call()
            except StorageAway:
                if self._owner is NO_OWNER or clock.now_s() >= over_s:
                    raise
                clock.wait(1.0)
                self.retry_now()

    def retry_now(self) -> None:
        if self._retry_at_s is not None:
            self._retry_at_s = self._owner.clock.now_s()

    def call(self, function: Callable[[], _T]) -> _T:
        """Make a call in the storage's thread; a server must answer within seconds."""
        expecting = partial(self.trials.expecting, function)
        if not self.connection.is_remote:
            return self.thread.call(expecting)
        self._require_reachable()
        left_s = self._owner.ends_s - self._owner.clock.now_s()
        patience_s = max(0.5, min(_PATIENCE_S, left_s))
        try:
            result = self.thread.call(expecting, patience_s)
        except TimeoutError:
            end = ", and no budget is left to wait" if left_s < _PATIENCE_S else ""
            away = _unreachable(f"the storage has not answered within {patience_s:.2g} s{end}", self.where)
        except StorageAway as error:
            away = error
        else:
            self._mark_available()
            self._settle()  # earlier calls have ended, too
            self._report_deliveries()
            return result
        self._mark_unavailable(away)
        raise away

    def post(self, function: Callable[[], object], finished: FrozenTrial | None = None) -> None:
        """Make a call in the storage's thread; if it is a server, don't wait.

        Args:
            finished: Trial that the call writes, returning its number.

        Raises:
            StorageAway: The server is known to be unreachable.
        """
        if not self.connection.is_remote:
            self.call(function)
            return
        self._require_reachable()
        self._posted.append((self.thread.post(partial(self.trials.expecting, function)), finished))

    def _settle(self) -> None:
        while self._posted and self._posted[0][0].done():
            future, finished = self._posted.popleft()
            try:
                result = future.result()
            except StorageAway as error:
                self._mark_unavailable(error)
            else:
                self._mark_available()
                if finished is not None:
                    self._on_delivery(finished, result)

    def _require_reachable(self) -> None:
        self._settle()
        waits = self._retry_at_s is not None and self._owner.clock.now_s() < self._retry_at_s
        if self.thread.is_stuck or waits:
            raise _unreachable(self._why_unavailable, self.where)

    def _mark_available(self) -> None:
        if self._retry_at_s is not None:
            self._retry_at_s = None
            self.leases.resume()
            self._remark("The storage is reachable again.")

    def _mark_unavailable(self, away: StorageAway) -> None:
        if self._retry_at_s is None:
            self.leases.pause()
            self._remark(f"{away.where}: {away.message}. Finished trials are kept here, and written when it answers.")
        self._missed.update(map(uuid_of, self.waiting))
        self._why_unavailable = away.message
        self._retry_at_s = self._owner.clock.now_s() + 5.0

    # Finished trials that wait for a server

    @property
    def waiting(self) -> Sequence[FrozenTrial]:
        return self.pending.trials if self.pending else ()

    @property
    def undelivered(self) -> str:
        """Message about the waiting trials; empty if there are none."""
        if not self.waiting:
            return ""
        return (
            f"Trials not yet written to {self.where}: {len(self.waiting)} ({self._why_unavailable}). The next search "
            "on this machine writes them."
        )

    def deliver(self) -> None:
        in_flight = {uuid_of(trial) for _, trial in self._posted if trial}
        for finished in self.waiting:
            if (uuid := uuid_of(finished)) not in in_flight:
                try:
                    self.post(partial(self.trials.finish, finished), finished)
                except StorageAway:
                    self._missed.add(uuid)

    def write_pending(self) -> None:
        """Write the waiting trials and wait for the result."""
        if self.pending is not None and (self.pending.trials or self._posted):
            self.deliver()
            with suppress(StorageAway):
                self.call(lambda: None)  # runs after all of these

    def _on_delivery(self, finished: FrozenTrial, number: int) -> None:
        assert self.pending is not None
        uuid, shown = uuid_of(finished), finished.number
        self.pending.remove(finished)
        if self._delivered(uuid, number) and shown not in (-1, number):
            self._renumbered.append(f"{shown} is now {number}")
        self._caught_up += uuid in self._missed
        self._missed.discard(uuid)

    def _report_deliveries(self) -> None:
        if self._caught_up:
            self._remark(f"Delayed trials written to the storage: {self._caught_up}.")
        if self._renumbered:
            self._remark(f"Trials renumbered, because others took their numbers: trial {', '.join(self._renumbered)}.")
        self._caught_up, self._renumbered = 0, []


def _unreachable(why: str, where: str) -> StorageAway:
    return StorageAway(why, where=where, remedy="Check that it runs, then run the same command again to resume.")


class StorageThread:
    """Thread that makes calls one after the other, and a regular one every `period_s` while it returns true.

    Ends when idle. An interrupt ends the caller's wait, never a call.
    """

    def __init__(self, name: str, regular: Callable[[], bool], period_s: float) -> None:
        self._name = name
        self._regular = regular
        self._period_s = period_s
        self._clock = SystemClock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._given_up: Future[Any] | None = None

    @property
    def is_stuck(self) -> bool:
        return self._given_up is not None and not self._given_up.done()

    def post(self, function: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- raised where the result is read
                future.set_exception(error)

        with self._lock:
            self._calls.put(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        return future

    def call(self, function: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Make a call and return its result.

        Raises:
            TimeoutError: It is still running, and later calls wait for it.
        """
        future = self.post(function)
        try:
            return future.result(patience_s)
        except TimeoutError:
            if not future.done():
                self._given_up = future
            raise

    def _work(self) -> None:
        due_s = self._clock.now_s() + self._period_s
        has_worked = True
        while True:
            try:
                call = self._calls.get(timeout=max(0.0, due_s - self._clock.now_s()))
            except queue.Empty:  # the regular call is due
                due_s = self._clock.now_s() + self._period_s
                if self._regular() or has_worked:
                    has_worked = False
                    continue
                with self._lock:
                    if self._calls.empty():
                        self._thread = None
                        return
            else:
                has_worked = True
                call()
