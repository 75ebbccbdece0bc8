"""Record of a study: its trials, kept as Optuna trials.

A trial is claimed with its parameters when it begins, and finished with its score, a few scalar attributes and the
whole `TrialRecord` as one JSON attribute. What was finished is never rewritten. Nothing that is read back is executed
or used as a path: a record holds knob values, metrics and names, each checked for its type.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from autotune.clock import SystemClock
from autotune.errors import StorageAway, StudyError
from autotune.metrics import values_of
from autotune.records import Scalar, TrialRecord, Values
from autotune.study.claims import CLAIM, NOBODY, RENEWAL_S, Claim, LeaseWatch, Owner, distribution_of
from autotune.study.members import Member, Phase, joint_search
from autotune.study.optuna_trials import RATING, RECORD, Claimed, OptunaTrials, attributes_of, read_records, starts_of
from autotune.study.pending import FinishedTrial, PendingTrials
from autotune.study.storage.lock import LockProbe
from autotune.study.storage.storage import Storage
from autotune.study.summary import Rating

_T = TypeVar("_T")
_OPENING_S = 30.0
_PATIENCE_S = 5.0  # for a server, in the middle of a search
_LATE = ("~", "")  # behind all trials whose start is known


class Study:
    """All trials of one identity, in the order in which they ended.

    Where its storage is a server, a trial goes on while that cannot be reached: what has finished is kept in a file of
    this machine, and written when it answers again.

    Args:
        storage: Where it is kept; it is created there if it does not exist.
        pending: File for what a server has not taken yet; None to raise `StorageAway` instead.
        owner: Who claims trials here.
        reads_only: Whether nothing will be written: then nothing is left beside what is read.

    Attributes:
        torn_bytes: Bytes of a torn last entry that were cut off at opening.
        remarks: What the user should know of the storage, not told yet.

    Raises:
        StudyError: The storage cannot be read or written.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        *,
        pending: Path | None = None,
        owner: Owner = NOBODY,
        reads_only: bool = False,
    ) -> None:
        self.name = name
        self.where = storage.where(name)
        self.remarks: deque[str] = deque()
        self._owner = owner
        self._claims: dict[str, Claim] = {}
        self._own_uuids: set[str] = set()
        self._pending_elsewhere: Sequence[Claimed] = ()
        self._membership: Membership | None = None
        self._thread = StorageThread(f"storage of {name}", self._renew, RENEWAL_S)
        self._away_until_s: float | None = None
        self._why_away = ""
        self._leases = LeaseWatch(owner.clock, owner.is_gone)
        opened = partial(OptunaTrials, name, storage, self._leases, reads_only=reads_only)
        try:
            self._trials = self._insist(lambda: self._thread.call(opened, _OPENING_S))
        except TimeoutError:
            raise _away(f"the storage has not answered for {_OPENING_S:g} s", self.where) from None
        self._membership = Membership(self._trials, owner, self._leases, self.where)
        self._connection = self._trials.connection
        self.torn_bytes = self._connection.torn_bytes
        self._ratings = dict(self._trials.ratings)
        self._pending = PendingTrials(pending, self.where) if pending and self._connection.is_remote else None
        waiting = self._pending.trials if self._pending else []
        found = self._trials.found()
        self._starts = starts_of(found)
        read = read_records(found, waiting, self.where)
        self._records = [record for _, record in read]
        self._missed = {trial.uuid for trial in waiting}
        self._waiting = {uuid: record for uuid, record in read if uuid in self._missed}

    def records(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return list(self._records)

    # Other members

    def join(self, member: Member) -> Member:
        """Become a member of the study, and take part in the joint search of those who are at work in it.

        Args:
            member: How this process describes itself, with the search that it would begin by itself.

        Returns:
            The member, with the name of the search that its trials belong to.

        Raises:
            StudyError: The storage could not be written.
        """
        assert self._membership is not None
        join = partial(self._membership.join, member)
        self._insist(lambda: self._call(join))
        self.refresh()
        assert self._membership.member is not None
        return self._membership.member

    @property
    def member(self) -> Member | None:
        """This process as a member of the study; None while it is none."""
        return self._membership.member if self._membership else None

    def describe(self, *, phase: Phase, point: str | None = None, left_because: str = "") -> None:
        """Tell the others what this member does, as far as that can be written; nothing for who is none.

        Args:
            point: Name of the point that it confirms; None for none.
            left_because: Reason for which it leaves; empty where the study needs no more.
        """
        if self._membership is not None:
            with suppress(StudyError):
                self._call(partial(self._membership.describe, phase=phase, point=point, left_because=left_because))

    def refresh(self) -> list[TrialRecord]:
        """Read what others have written since the last time; their trials are in `records` from now on.

        Returns:
            Their trials that have ended with a record, oldest first; none while the storage is away.

        Raises:
            StudyError: The storage cannot be read.
        """
        try:
            news = self._call(partial(self._trials.news, self._own() | self._own_uuids))
        except StorageAway:
            return []
        self._pending_elsewhere = news.pending
        assert self._membership is not None
        self._membership.see(news.members)
        read = read_records(news.ended, (), self.where)
        new = [record for uuid, record in read if uuid not in self._own_uuids]
        if new:
            self._records.extend(new)
            self._starts.update(starts_of(news.ended, always=bool(self._starts)))
            # As whoever opens the study later reads them.
            self._records.sort(key=lambda record: (self._starts.get(record.number, _LATE), record.number))
        return new

    def pending_elsewhere(self) -> Sequence[Claimed]:
        """Trials that others make, as the last `refresh` saw them."""
        return self._pending_elsewhere

    def others(self) -> list[Member]:
        """Other members that are at work, see `Membership.others`."""
        return self._membership.others() if self._membership else []

    def seen_members(self) -> list[Member]:
        """All members as the last `refresh` saw them."""
        return self._membership.seen if self._membership else []

    def members(self) -> list[Member]:
        """All members on record, those that have left included; who joined first in front.

        Raises:
            StudyError: The storage cannot be read.
        """
        return self._call(self._trials.members)

    # Trials

    def begin(self, values: Values, choices: Mapping[str, Sequence[Scalar]], **about: Scalar) -> Claim:
        """Claim the next trial; it is in the storage when this returns, unless that is away.

        Raises:
            StudyError: The storage could not be written.
        """
        self.write_pending()
        claim = Claim(
            number=max(self._trials.last, *(record.number for record in self._records), -1) + 1,
            values=values,
            distributions={path: distribution_of(some) for path, some in choices.items()},
            about={**self._owner.about, **about},
        )
        self._claims[claim.uuid] = claim
        self._own_uuids.add(claim.uuid)
        try:
            self._call(partial(self._trials.make, claim, self._own()))
        except StorageAway:
            if self._pending is None:
                raise
        return claim

    def is_taken(self, claim: Claim) -> bool:
        """Return whether somebody else makes a trial of the same point, and was first; False if that is not known."""
        try:
            return claim.trial_id is not None and self._call(partial(self._trials.is_taken, claim))
        except StorageAway:
            return False

    def finish(
        self, claim: Claim, record: TrialRecord, *, score: float | None = None, speeds: Sequence[float] = ()
    ) -> TrialRecord:
        """Finish a claimed trial; it is on disk when this returns.

        Args:
            score: Its score over the baseline's, 1.0 for the baseline itself; None if it gave no comparable numbers.
            speeds: Its speed over time, in samples per second, at even intervals of its window.

        Returns:
            The record with its number.

        Raises:
            StudyError: It could not be written. `records` has the trial all the same.
        """
        written = replace(record, number=claim.number)
        self._records.append(written)  # it was measured: answers from this process include it
        ended = datetime.now()
        finished = FinishedTrial(
            uuid=claim.uuid,
            values=claim.values,
            distributions=claim.distributions,
            attributes={CLAIM: claim.attribute(), **scalars_of(record, claim.about), RECORD: attributes_of(record)},
            score=score,
            speeds=tuple(speeds),
            started=claim.started,
            ended=ended,
            number=claim.number,
        )
        if self._pending is None:
            number = self._call(partial(self._trials.finish, claim, finished))
            self._claims.pop(claim.uuid, None)
            return self._renumbered(written, number)
        self._waiting[claim.uuid] = written
        self._pending.add(finished)  # first: it is kept, whatever becomes of the server and of this process
        self.write_pending()
        return self._records[-1]

    def abandon(self, claim: Claim, *, why: str = "") -> None:
        """Give up a claim on a trial that was interrupted, as far as that can be written.

        Args:
            why: What was in its way, for people; empty if it was the end of the search.
        """
        self._claims.pop(claim.uuid, None)
        with suppress(StudyError):
            self._call(partial(self._trials.give_up, claim, why))

    def renew(self) -> None:
        """Give a sign of life for each claim; done by itself every few seconds."""
        self._thread.call(self._renew)

    def close_abandoned(self) -> int:
        """Close the trials of others that nobody makes any more: they were interrupted.

        Those whose process is known to be gone are closed at once, others when they gave no sign of life for a minute:
        each `begin` looks again. What waits for the storage is written first: it finishes trials of an earlier search.

        Returns:
            Their number.

        Raises:
            StudyError: The storage could not be written.
        """
        self.write_pending()
        close = partial(self._trials.close_lapsed, self._own())
        return self._insist(lambda: self._call(close))

    def append(self, record: TrialRecord) -> TrialRecord:
        """Append a trial that was not claimed here; it is in the storage when this returns.

        Returns:
            The record with its number.

        Raises:
            StudyError: It could not be written. `records` has the trial all the same.
        """
        self._records.append(record)
        now = datetime.now()
        measured = record.comparable and record.measurement
        finished = FinishedTrial(
            uuid=Claim(number=-1, values={}, distributions={}, about={}).uuid,
            values={},
            distributions={},
            attributes={RECORD: attributes_of(record)},
            score=measured.samples_per_s if measured else None,
            speeds=(),
            started=now,
            ended=now,
        )
        return self._renumbered(record, self._call(partial(self._trials.add, finished)))

    def write_pending(self) -> None:
        """Write what waits for the storage, as long as that answers; each `begin` does it first.

        Raises:
            StudyError: The storage cannot be used.
        """
        if self._pending is None:
            return
        missed, moved = 0, []
        for finished in list(self._pending.trials):
            try:
                number = self._call(partial(self._trials.finish, self._claims.get(finished.uuid), finished))
            except StorageAway:
                break
            self._pending.remove(finished)
            self._claims.pop(finished.uuid, None)
            if record := self._waiting.pop(finished.uuid, None):  # else nobody can read it, or it waited twice
                self._renumbered(record, number)
                told = finished.number
                if told is not None and told != number:
                    moved.append(f"{told} is {number}")
            missed += finished.uuid in self._missed
            self._missed.discard(finished.uuid)
        self._missed.update(self._waiting)
        if missed:
            self.remarks.append(f"Trials that the storage had missed are written: {missed}.")
        if moved:
            self.remarks.append(
                f"Others have got numbers of trials that were shown here: trial {', '.join(moved)} from now on."
            )

    @property
    def ratings(self) -> Mapping[str, Rating]:
        """What searches have kept of the worth of each change of their answers, by search."""
        return self._ratings

    def keep_rating(self, search: str, rating: Rating) -> None:
        """Keep what each change of a search's answer is worth.

        Raises:
            StudyError: The storage could not be written.
        """
        self._ratings[search] = rating
        self.note(RATING + search, asdict(rating))

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the study, a JSON value, in place of an earlier one.

        Raises:
            StudyError: The storage could not be written.
        """
        self._call(partial(self._trials.note, name, value))

    def close(self) -> None:
        """Give up all claims, write what waits for the storage as far as there is time, and close the storage.

        Who only reads writes nothing: a search may be at work on the same file.
        """
        for claim in list(self._claims.values()):
            if claim.uuid not in self._waiting:
                self.abandon(claim)
        self.describe(phase=Phase.LEFT)
        if self._owner is not NOBODY:
            self._ask_again()  # the file may be lost with this machine
            with suppress(StudyError):
                self.write_pending()
            if said := self.undelivered:
                self.remarks.append(said)
        if self._membership is not None:
            self._membership.close()
        with suppress(StudyError):
            self._call(self._connection.close)

    @property
    def undelivered(self) -> str:
        """What waits for the storage, in a sentence for the user; empty if nothing does."""
        if not (self._pending and self._pending.trials):
            return ""
        return (
            f"Trials that wait here to be written to {self.where}: {len(self._pending.trials)} ({self._why_away}). The "
            "next search on this machine writes them."
        )

    # Calls to the storage, in the caller's thread

    def _insist(self, call: Callable[[], _T]) -> _T:
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
                self._ask_again()

    def _ask_again(self) -> None:
        if self._away_until_s is not None:
            self._away_until_s = self._owner.clock.now_s()

    def _call(self, function: Callable[[], _T]) -> _T:
        """Make a call in the storage's thread; a server has a few seconds to answer.

        Raises:
            StorageAway: A server did not answer in time, or cannot be reached.
            StudyError: The storage cannot be used.
        """
        expecting = partial(self._trials.expecting, function)
        if not self._connection.is_remote:
            return self._thread.call(expecting)
        now_s = self._owner.clock.now_s()
        if self._thread.is_stuck or (self._away_until_s is not None and now_s < self._away_until_s):
            raise _away(self._why_away, self.where)
        left_s = self._owner.ends_s - now_s
        patience_s = max(0.5, min(_PATIENCE_S, left_s))
        try:
            result = self._thread.call(expecting, patience_s)
        except TimeoutError:
            end = ", and the budget leaves no more time to wait" if left_s < _PATIENCE_S else ""
            away = _away(f"the storage has not answered within {patience_s:.2g} s{end}", self.where)
        except StorageAway as error:
            away = error
        else:
            if self._away_until_s is not None:
                self._away_until_s = None
                self._leases.resume()
                self.remarks.append("The storage answers again.")
            return result
        if self._away_until_s is None:
            self._leases.pause()
            self.remarks.append(
                f"{away.where}: {away.message}. Finished trials are kept here, and written when it answers."
            )
        self._why_away = away.message
        self._away_until_s = self._owner.clock.now_s() + 5.0  # between tries to reach a server that is away
        raise away

    def _renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        if number == record.number:
            return record
        renumbered = replace(record, number=number)
        self._records[self._records.index(record)] = renumbered
        return renumbered

    def _own(self) -> set[str]:
        """Return the UUIDs of the trials that this process makes, or has to write."""
        return {*self._claims, *(trial.uuid for trial in (self._pending.trials if self._pending else ()))}

    def _renew(self) -> bool:
        claims, membership = list(self._claims.values()), self._membership
        if claims:
            self._trials.renew(claims)
        if membership is None or membership.member is None or membership.member.has_left:
            return bool(claims)
        with suppress(StudyError), self._connection.expected():
            membership.describe()
        return True


def _away(why: str, where: str) -> StorageAway:
    return StorageAway(why, where=where, remedy="See whether it runs, then run the same command again: it goes on.")


def scalars_of(record: TrialRecord, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that tables and plots show, without unknown ones: one null, and it is no axis."""
    metrics = values_of(record.measurement) if record.measurement else {}
    attributes = {
        "purpose": record.purpose.value,
        "ending": record.ending.value,
        "validity": record.validity.value,
        "sampler": about.get("sampler"),
        "samples_per_s": metrics.get("samples_per_s"),
        "gpu_utilization": metrics.get("gpu_utilization"),
        "cv": metrics.get("cv"),
    }
    return {name: value for name, value in attributes.items() if value is not None}


_MEMBERS = "members"  # beside the names of Optuna studies, in the watch over signs of life


class Membership:
    """Membership in one study.

    What writes is called in the storage's thread alone, which also renews it: so nothing that is said here is
    overwritten by an older state.

    Args:
        owner: Who claims trials here.
        leases: Watch over the signs of life of others.
        where: Place of the study, in words.

    Attributes:
        member: This process as a member; None while it is none.
    """

    def __init__(self, trials: OptunaTrials, owner: Owner, leases: LeaseWatch, where: str) -> None:
        self._trials = trials
        self._owner = owner
        self._leases = leases
        self._where = where
        self._all: Sequence[Member] = ()
        self._probe: LockProbe | None = None
        self._is_free: dict[str, bool] = {}  # the lock of a member, when it was first looked at
        self._signs_seen: dict[str, int] = {}  # of a member whose lock was free, at the look after that
        self._gone: set[str] = set()
        self.member: Member | None = None

    # In the storage's thread

    def join(self, member: Member) -> None:
        """Become a member; of two that come at once, one sees the other at least."""
        if self._trials.connection.lock_probe is not None:
            self._probe = self._trials.connection.lock_probe(member.uuid)
            self._probe.hold()
        self.member = member
        self.describe()
        self._all = self._trials.members()
        search = joint_search(member, self.others(), self._owner.clock.utc())
        if search != member.search:
            self.describe(search=search)

    def describe(self, **changes: Any) -> None:
        """Write a sign of life, and what has changed; nothing for who is no member, or has left."""
        if self.member is None or self.member.has_left:
            return
        clock = self._owner.clock
        left_s = max(0.0, self._owner.ends_s - clock.now_s())
        self.member = replace(self.member, **changes).renewed(clock.utc(), left_s)
        self._trials.present(self.member)

    # In any thread

    def see(self, members: Sequence[Member]) -> None:
        """Take note of all members that are on record.

        Raises:
            StudyError: The locks of a shared journal do not hold between this host and another.
        """
        self._all = members
        if self._probe is not None:
            self._require_locks(self._probe)

    @property
    def seen(self) -> list[Member]:
        """All members that are on record, as far as it is known."""
        return list(self._all)

    def others(self) -> list[Member]:
        """Return the other members that are at work, as far as it is known; who joined first in front.

        One that was killed counts until it has given no sign of life for a minute.
        """
        own = self.member.uuid if self.member else None
        return [
            one
            for one in self._all
            if one.uuid != own
            and not one.has_left
            and not self._leases.has_lapsed(_MEMBERS, one.uuid, {**one.about, "n": one.n})
        ]

    def close(self) -> None:
        """Let go of what is held."""
        if self._probe is not None:
            self._probe.close()

    def _require_locks(self, probe: LockProbe) -> None:
        alive = self.others()
        own = self.member.uuid if self.member else None
        for one in self._all:
            if one.uuid != own and one not in alive and not one.has_left and one.uuid not in self._gone:
                self._gone.add(one.uuid)
                probe.delete_left(one.uuid)
        for one in alive:
            if one.uuid not in self._is_free:
                self._is_free[one.uuid] = probe.holds(one.uuid) is False
                continue
            if not self._is_free[one.uuid]:
                continue
            # It may have been killed after it had written what is read here: only what comes later counts.
            before = self._signs_seen.setdefault(one.uuid, one.n)
            if one.n > before and probe.holds(one.uuid) is False:
                raise StudyError(
                    f"locks on this disk do not hold between {one.host} and this host, so that both would write into "
                    "the journal at once",
                    where=self._where,
                    remedy="Keep the study in PostgreSQL, or mount the disk with locks (for NFS: without nolock).",
                )


class StorageThread:
    """Thread that makes calls one after the other, and a regular one between them.

    It is started by the first call and ends when there has been nothing to do for a while. An interrupt ends the
    waiting of the caller, never a call halfway.

    Args:
        regular: Called between calls, every `period_s`, also while there are many; returns whether it has to be called
            again.
        period_s: Time between two such calls, in seconds.
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

    def call(self, function: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Make a call, wait for its end, and return what it returns.

        Args:
            patience_s: Longest wait, in seconds; None to wait until it ends.

        Raises:
            TimeoutError: It did not end in time; it goes on, and others wait behind it.
            Exception: Whatever it raises.
        """
        future: Future[_T] = Future()

        def make() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- it is raised in the caller's thread
                future.set_exception(error)

        with self._lock:
            self._calls.put(make)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
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
