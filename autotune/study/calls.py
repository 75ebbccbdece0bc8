"""Calls to the storage of a study, which may be a server that is away for a while, and the thread that makes them."""

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
from autotune.study.claims import NOBODY, RENEWAL_S, LeaseWatch, Owner, uuid_of
from autotune.study.entry import UndeliveredTrials
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.storage.storage import Storage

Found = tuple[Sequence[tuple[int, FrozenTrial]], Mapping[str, Any]]
"""The trials of a study, with their numbers, and its attributes."""

_T = TypeVar("_T")
_OPENING_S = 30.0
_PATIENCE_S = 5.0  # for a server, in the middle of a search


class StorageCalls:
    """Calls to the storage of a study, and the finished trials that wait for a server.

    Args:
        renew: Called between calls, every few seconds; returns whether it has to be called again.
        delivered: Called with the UUID and the number of a trial that waited and is in the storage now; returns whether
            its record is known here.
        remark: Called with what the user should know of the storage.

    Attributes:
        thread: Thread that the calls are made in.
        trials: The trials in the storage; used in that thread alone.
        pending: File of the finished trials that wait for a server; None if none has to.
        leases: Leases of others; none lapses while the storage is away.

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
        self._away_until_s: float | None = None
        self._why_away = ""
        self._posted: deque[tuple[Future[Any], FrozenTrial | None]] = deque()  # with what they write
        self._moved: list[str] = []  # trials whose numbers others have got, not told yet
        self._caught_up = 0  # trials that the storage had missed, and that it has now, not told yet

    def open(self, name: str, storage: Storage, pending: Path | None, *, reads_only: bool) -> Found:
        """Open the storage; return what is there.

        Args:
            pending: File of trials that wait for a server; None to raise `StorageAway` instead.
        """

        def opened() -> Found:
            self.trials = OptunaTrials(name, storage, self.leases, reads_only=reads_only)
            return self.trials.expecting(self.trials.found), self.trials.expecting(self.trials.attributes)

        try:
            found = self.insist(lambda: self.thread.call(opened, _OPENING_S))
        except TimeoutError:
            raise _away(f"the storage has not answered for {_OPENING_S:g} s", self.where) from None
        self.connection = self.trials.connection
        self.pending = UndeliveredTrials(pending, self.where) if pending and self.connection.is_remote else None
        self._missed = {uuid_of(trial) for trial in self.waiting}
        return found

    def insist(self, call: Callable[[], _T]) -> _T:
        """Make a call without which a search cannot begin: for a few seconds, where the server may be restarting."""
        clock = self._owner.clock
        # of tries, at the beginning of a search: a server restarts in less, a wrong address is told soon
        over_s = clock.now_s() + 5.0
        while True:
            try:
                return call()
            except StorageAway:
                if self._owner is NOBODY or clock.now_s() >= over_s:
                    raise
                clock.wait(1.0)
                self.ask_again()

    def ask_again(self) -> None:
        """Let the next call ask the server, also if it has just not answered."""
        if self._away_until_s is not None:
            self._away_until_s = self._owner.clock.now_s()

    def call(self, function: Callable[[], _T]) -> _T:
        """Make a call in the storage's thread; a server has a few seconds to answer."""
        expecting = partial(self.trials.expecting, function)
        if not self.connection.is_remote:
            return self.thread.call(expecting)
        self._require_answers()
        left_s = self._owner.ends_s - self._owner.clock.now_s()
        patience_s = max(0.5, min(_PATIENCE_S, left_s))
        try:
            result = self.thread.call(expecting, patience_s)
        except TimeoutError:
            end = ", and the budget leaves no more time to wait" if left_s < _PATIENCE_S else ""
            away = _away(f"the storage has not answered within {patience_s:.2g} s{end}", self.where)
        except StorageAway as error:
            away = error
        else:
            self._note_answer()
            self._settle()  # what was in front of it is done, too
            self._tell_of_deliveries()
            return result
        self._note_away(away)
        raise away

    def post(self, function: Callable[[], object], finished: FrozenTrial | None = None) -> None:
        """Make a call in the storage's thread; of a server, nobody waits for it.

        Args:
            finished: Trial that it writes, and returns the number of.

        Raises:
            StorageAway: It is known that the server does not answer.
        """
        if not self.connection.is_remote:
            self.call(function)
            return
        self._require_answers()
        self._posted.append((self.thread.post(partial(self.trials.expecting, function)), finished))

    def _settle(self) -> None:
        """Take the results of posted calls that have ended."""
        while self._posted and self._posted[0][0].done():
            future, finished = self._posted.popleft()
            try:
                result = future.result()
            except StorageAway as error:
                self._note_away(error)
            else:
                self._note_answer()
                if finished is not None:
                    self._note_delivery(finished, result)

    def _require_answers(self) -> None:
        self._settle()
        waits = self._away_until_s is not None and self._owner.clock.now_s() < self._away_until_s
        if self.thread.is_stuck or waits:
            raise _away(self._why_away, self.where)

    def _note_answer(self) -> None:
        if self._away_until_s is not None:
            self._away_until_s = None
            self.leases.resume()
            self._remark("The storage answers again.")

    def _note_away(self, away: StorageAway) -> None:
        if self._away_until_s is None:
            self.leases.pause()
            self._remark(f"{away.where}: {away.message}. Finished trials are kept here, and written when it answers.")
        self._missed.update(map(uuid_of, self.waiting))
        self._why_away = away.message
        self._away_until_s = self._owner.clock.now_s() + 5.0  # between tries to reach a server that is away

    # Finished trials that wait for a server

    @property
    def waiting(self) -> Sequence[FrozenTrial]:
        """Finished trials that the storage does not have yet."""
        return self.pending.trials if self.pending else ()

    @property
    def undelivered(self) -> str:
        """What waits for the storage, in a sentence for the user; empty if nothing does."""
        if not self.waiting:
            return ""
        return (
            f"Trials that wait here to be written to {self.where}: {len(self.waiting)} ({self._why_away}). The "
            "next search on this machine writes them."
        )

    def deliver(self) -> None:
        """Begin to write what waits for the storage."""
        on_the_way = {uuid_of(trial) for _, trial in self._posted if trial}
        for finished in self.waiting:
            if (uuid := uuid_of(finished)) not in on_the_way:
                try:
                    self.post(partial(self.trials.finish, finished), finished)
                except StorageAway:
                    self._missed.add(uuid)

    def write_pending(self) -> None:
        """Write what waits for the storage, and wait for that, as far as it answers: no search does between trials."""
        if self.pending is not None and (self.pending.trials or self._posted):
            self.deliver()
            with suppress(StorageAway):
                self.call(lambda: None)  # behind all of these

    def _note_delivery(self, finished: FrozenTrial, number: int) -> None:
        assert self.pending is not None
        uuid, told = uuid_of(finished), finished.number
        self.pending.remove(finished)
        if self._delivered(uuid, number) and told not in (-1, number):
            self._moved.append(f"{told} is {number}")
        self._caught_up += uuid in self._missed
        self._missed.discard(uuid)

    def _tell_of_deliveries(self) -> None:
        if self._caught_up:
            self._remark(f"Trials that the storage had missed are written: {self._caught_up}.")
        if self._moved:
            self._remark(
                f"Others have got numbers of trials that were shown here: trial {', '.join(self._moved)} from now on."
            )
        self._caught_up, self._moved = 0, []


def _away(why: str, where: str) -> StorageAway:
    return StorageAway(why, where=where, remedy="See whether it runs, then run the same command again: it goes on.")


class StorageThread:
    """Thread that makes calls one after the other, and a regular one between them.

    It is started by the first call and ends when there has been nothing to do for a while. An interrupt ends the
    waiting of the caller, never a call halfway.

    Args:
        regular: Called between calls, every `period_s`, also while there are many; returns whether it has to be called
            again.
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
        """True while a call goes on that its caller has given up."""
        return self._given_up is not None and not self._given_up.done()

    def post(self, function: Callable[[], _T]) -> Future[_T]:
        """Make a call behind those before it, and return its future."""
        future: Future[_T] = Future()

        def make() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- it is raised where the result is asked for
                future.set_exception(error)

        with self._lock:
            self._calls.put(make)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        return future

    def call(self, function: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Make a call, wait for its end, and return what it returns.

        Args:
            patience_s: Longest wait, in seconds; None to wait until it ends.

        Raises:
            TimeoutError: It did not end in time; it goes on, and others wait behind it.
            Exception: Whatever it raises.
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
            except queue.Empty:  # it is due, however many calls there were since the last time
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
