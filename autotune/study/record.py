"""Record of a study: its trials, kept as Optuna trials, and the processes that make them.

A trial is claimed with its parameters when it begins, and finished with its score, a few scalar attributes and the
whole `TrialRecord` as one JSON attribute. What was finished is never rewritten.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from optuna.trial import FrozenTrial

from autotune.clock import SystemClock
from autotune.errors import StorageAway, StudyError
from autotune.records import Scalar, TrialRecord, Values
from autotune.study.claims import NOBODY, RENEWAL_S, Claim, LeaseWatch, Owner, distribution_of, uuid_of
from autotune.study.entry import UndeliveredTrials, finished_trial
from autotune.study.members import ATTRIBUTE, Member, Phase, joint_search, members_among
from autotune.study.optuna_trials import Claimed, OptunaTrials, read_records, starts_of
from autotune.study.storage.lock import LockProbe
from autotune.study.storage.storage import Storage
from autotune.study.summary import Rating, rating_of

_RATING = "worth of changes:"
"""Beginning of the attributes of a study that hold a search's `Rating`; the search's name follows."""

_T = TypeVar("_T")
_OPENING_S = 30.0
_PATIENCE_S = 5.0  # for a server, in the middle of a search


class Study:
    """All trials of one identity, in the order in which they ended.

    Where its storage is a server, a trial goes on while that cannot be reached: what has finished is kept in a file of
    this machine, and written when it answers again.

    Args:
        storage: Where it is kept; it is created there if it does not exist.
        pending: File for what a server has not taken yet; None to raise `StorageAway` instead.
        reads_only: Whether nothing will be written: then nothing is left beside what is read.

    Attributes:
        member: This process as a member of the study; None while it is none.
        ratings: What searches have kept of the worth of each change of their answers, by search.
        torn_bytes: Bytes of a torn last entry that were cut off at opening.
        remarks: What the user should know of the storage, not told yet.

    Raises:
        StudyError: The storage cannot be read or written; from every method that uses it.
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
        self.member: Member | None = None
        self._owner = owner
        self._claims: dict[str, Claim] = {}
        self._own_uuids: set[str | None] = set()
        self._pending_elsewhere: Sequence[Claimed] = ()
        self._members: Sequence[Member] = ()  # as they were seen last
        self._probe: LockProbe | None = None
        self._free_locks: dict[str, int | None] = {}  # of members, with their signs of life when that was known
        self._thread = StorageThread(f"storage of {name}", self._renew, RENEWAL_S)
        self._away_until_s: float | None = None
        self._why_away = ""
        self._posted: deque[tuple[Future[Any], FrozenTrial | None]] = deque()  # with what they write
        self._moved: list[str] = []  # trials whose numbers others have got, not told yet
        self._caught_up = 0  # trials that the storage had missed, and that it has now, not told yet
        self._leases = LeaseWatch(owner.clock, owner.is_gone)

        def opened() -> tuple[OptunaTrials, list[tuple[int, FrozenTrial]], Mapping[str, Any]]:
            trials = OptunaTrials(name, storage, self._leases, reads_only=reads_only)
            return trials, trials.expecting(trials.found), trials.expecting(trials.attributes)

        try:
            self._trials, found, attributes = self._insist(lambda: self._thread.call(opened, _OPENING_S))
        except TimeoutError:
            raise _away(f"the storage has not answered for {_OPENING_S:g} s", self.where) from None
        self._connection = self._trials.connection
        self.torn_bytes = self._connection.torn_bytes
        ratings = {name: rating_of(some) for name, some in attributes.items() if name.startswith(_RATING)}
        self.ratings = {name.removeprefix(_RATING): rating for name, rating in ratings.items() if rating}
        self._pending = UndeliveredTrials(pending, self.where) if pending and self._connection.is_remote else None
        waiting = self._pending.trials if self._pending else []
        self._starts = starts_of(found)
        read = read_records(found, waiting, self.where)
        self._records = [record for _, record in read]
        self._missed = {uuid_of(trial) for trial in waiting}
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
        """
        self._insist(lambda: self._call(partial(self._join, member)))
        self.refresh()
        assert self.member is not None
        return self.member

    def _join(self, member: Member) -> None:
        """Become a member, in the storage's thread; of two that come at once, one sees the other at least."""
        if self._connection.lock_probe is not None:
            self._probe = self._connection.lock_probe(member.uuid)
            self._probe.hold()
        self.member = member
        self._present()
        self._members = members_among(self._trials.attributes())
        search = joint_search(member, self.others(), self._owner.clock.utc())
        if search != member.search:
            self._present(search=search)

    def _present(self, **changes: Any) -> None:
        """Write a sign of life, and what has changed; nothing for who is no member, or has left.

        Called in the storage's thread alone, which also renews it: so nothing is overwritten by an older state.
        """
        if self.member is not None and not self.member.has_left:
            clock = self._owner.clock
            left_s = max(0.0, self._owner.ends_s - clock.now_s())
            self.member = replace(self.member, **changes).renewed(clock.utc(), left_s)
            self._trials.note(ATTRIBUTE + self.member.uuid, self.member.attribute())

    def describe(self, *, phase: Phase, point: str | None = None, left_because: str = "") -> None:
        """Tell the others what this member does, as far as that can be written; nothing for who is none.

        Args:
            left_because: Reason for which it leaves; empty where the study needs no more.
        """
        if self.member is not None:
            present = partial(self._present, phase=phase, point=point, left_because=left_because)
            with suppress(StudyError):
                self._post(present)

    def refresh(self) -> list[TrialRecord]:
        """Read what others have written since the last time; their trials are in `records` from now on.

        Returns:
            Their trials that have ended with a record, oldest first; none while the storage is away.

        Raises:
            StudyError: The storage cannot be read, or the locks of a shared journal do not hold.
        """
        try:
            news = self._call(partial(self._trials.news, self._own() | self._own_uuids))
        except StorageAway:
            return []
        self._pending_elsewhere = news.pending
        self._members = members_among(news.attributes)
        self._require_locks()
        read = read_records(news.ended, (), self.where)
        new = [record for uuid, record in read if uuid not in self._own_uuids]
        if new:
            self._records.extend(new)
            self._starts.update(starts_of(news.ended, always=bool(self._starts)))
            # As whoever opens the study later reads them.
            self._records.sort(key=lambda record: (self._starts.get(record.number, ("~", "")), record.number))
        return new

    def _require_locks(self) -> None:
        """Check that the lock of each member at work holds here, where all hangs on the locks of a disk."""
        if self._probe is None:
            return
        alive = self.others()
        for one in self._members:
            if not (one in alive or one.has_left or (self.member and one.uuid == self.member.uuid)):
                self._probe.delete_left(one.uuid)
        for one in alive:
            if self._probe.holds(one.uuid) is not False:
                continue
            # It may have been killed after it had written what is read here: only what comes later counts.
            if one.uuid not in self._free_locks:
                self._free_locks[one.uuid] = None
            elif (before := self._free_locks[one.uuid]) is None:
                self._free_locks[one.uuid] = one.n
            elif one.n > before:
                raise StudyError(
                    f"locks on this disk do not hold between {one.host} and this host, so that both would write into "
                    "the journal at once",
                    where=self.where,
                    remedy="Keep the study in PostgreSQL, or mount the disk with locks (for NFS: without nolock).",
                )

    def trials_elsewhere(self) -> Sequence[Claimed]:
        """Trials that others make, as the last `refresh` saw them."""
        return self._pending_elsewhere

    def others(self) -> list[Member]:
        """Return the other members that are at work, as far as it is known; who joined first in front.

        One that was killed counts until it has given no sign of life for a minute.
        """
        own = self.member.uuid if self.member else None
        others = (one for one in self._members if one.uuid != own and not one.has_left)
        return [one for one in others if not self._leases.has_lapsed("members", one.uuid, {**one.about, "n": one.n})]

    def seen_members(self) -> list[Member]:
        """All members as the last `refresh` saw them."""
        return list(self._members)

    def members(self) -> list[Member]:
        """All members on record, those that have left included; who joined first in front."""
        return members_among(self._call(self._trials.attributes))

    # Trials

    def begin(self, values: Values, choices: Mapping[str, Sequence[Scalar]], **about: Scalar) -> Claim:
        """Claim the next trial.

        It is in the storage when this returns, unless that is away, or is a server that nobody else writes to now.
        """
        self._deliver()
        claim = Claim(
            number=max(self._trials.last, *(record.number for record in self._records), -1) + 1,
            values=values,
            distributions={path: distribution_of(some) for path, some in choices.items()},
            about={**self._owner.about, **about},
        )
        self._claims[claim.uuid] = claim
        self._own_uuids.add(claim.uuid)
        make = partial(self._trials.make, claim, self._own())
        if self._pending is not None and not self.others():
            with suppress(StorageAway):
                self._post(make)
            return claim
        try:
            self._call(make)
        except StorageAway:
            if self._pending is None:
                raise
        return claim

    def is_taken(self, claim: Claim) -> bool:
        """Return whether somebody else makes a trial of the same point, and was first; False if that is not known."""
        try:
            return bool(claim.is_made) and self._call(partial(self._trials.is_taken, claim))
        except StorageAway:
            return False

    def finish(
        self, claim: Claim, record: TrialRecord, *, score: float | None = None, speeds: Sequence[float] = ()
    ) -> TrialRecord:
        """Finish a claimed trial; it is on disk when this returns, and soon in the storage, too.

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
        finished = finished_trial(claim, record, score=score, speeds=speeds)
        if self._pending is None:
            number = self._call(partial(self._trials.finish, finished))
            self._claims.pop(claim.uuid, None)
            return self._renumbered(written, number)
        self._waiting[claim.uuid] = written
        self._pending.add(finished)  # first: it is kept, whatever becomes of the server and of this process
        self._deliver()
        return written

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
        """
        self.write_pending()
        return self._insist(lambda: self._call(partial(self._trials.close_lapsed, self._own())))

    def write_pending(self) -> None:
        """Write what waits for the storage, and wait for that, as far as it answers: no search does between trials."""
        if self._pending is not None and (self._pending.trials or self._posted):
            self._deliver()
            with suppress(StorageAway):
                self._call(lambda: None)  # behind all of these

    def _deliver(self) -> None:
        """Begin to write what waits for the storage."""
        on_the_way = {uuid_of(trial) for _, trial in self._posted if trial}
        for finished in list(self._pending.trials if self._pending else ()):
            if (uuid := uuid_of(finished)) not in on_the_way:
                try:
                    self._post(partial(self._trials.finish, finished), finished)
                except StorageAway:
                    self._missed.add(uuid)

    def _delivered(self, finished: FrozenTrial, number: int) -> None:
        assert self._pending is not None
        uuid, told = uuid_of(finished), finished.number
        self._pending.remove(finished)
        self._claims.pop(uuid or "", None)
        if record := self._waiting.pop(uuid, None):  # else nobody can read it, or it waited twice
            self._renumbered(record, number)
            if told not in (-1, number):
                self._moved.append(f"{told} is {number}")
        self._caught_up += uuid in self._missed
        self._missed.discard(uuid)

    def keep_rating(self, search: str, rating: Rating) -> None:
        """Keep what each change of a search's answer is worth."""
        self.ratings[search] = rating
        self.note(_RATING + search, asdict(rating))

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the study, a JSON value, in place of an earlier one."""
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
        if self._probe is not None:
            self._probe.close()
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
        """Make a call in the storage's thread; a server has a few seconds to answer."""
        expecting = partial(self._trials.expecting, function)
        if not self._connection.is_remote:
            return self._thread.call(expecting)
        self._settle()
        self._require_answers()
        left_s = self._owner.ends_s - self._owner.clock.now_s()
        patience_s = max(0.5, min(_PATIENCE_S, left_s))
        try:
            result = self._thread.call(expecting, patience_s)
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

    def _post(self, function: Callable[[], object], finished: FrozenTrial | None = None) -> None:
        """Make a call in the storage's thread; of a server, nobody waits for it.

        Args:
            finished: Trial that it writes, and returns the number of.

        Raises:
            StorageAway: It is known that the server does not answer.
        """
        if not self._connection.is_remote:
            self._call(function)
            return
        self._settle()
        self._require_answers()
        self._posted.append((self._thread.post(partial(self._trials.expecting, function)), finished))

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
                    self._delivered(finished, result)

    def _require_answers(self) -> None:
        waits = self._away_until_s is not None and self._owner.clock.now_s() < self._away_until_s
        if self._thread.is_stuck or waits:
            raise _away(self._why_away, self.where)

    def _note_answer(self) -> None:
        if self._away_until_s is not None:
            self._away_until_s = None
            self._leases.resume()
            self.remarks.append("The storage answers again.")

    def _note_away(self, away: StorageAway) -> None:
        if self._away_until_s is None:
            self._leases.pause()
            self.remarks.append(
                f"{away.where}: {away.message}. Finished trials are kept here, and written when it answers."
            )
        self._missed.update(self._waiting)
        self._why_away = away.message
        self._away_until_s = self._owner.clock.now_s() + 5.0  # between tries to reach a server that is away

    def _tell_of_deliveries(self) -> None:
        if self._caught_up:
            self.remarks.append(f"Trials that the storage had missed are written: {self._caught_up}.")
        if self._moved:
            self.remarks.append(
                f"Others have got numbers of trials that were shown here: trial {', '.join(self._moved)} from now on."
            )
        self._caught_up, self._moved = 0, []

    def _renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        if number == record.number:
            return record
        renumbered = replace(record, number=number)
        self._records[self._records.index(record)] = renumbered
        return renumbered

    def _own(self) -> set[str | None]:
        """Return the UUIDs of the trials that this process makes, or has to write."""
        return {*self._claims, *(uuid_of(trial) for trial in (self._pending.trials if self._pending else ()))}

    def _renew(self) -> bool:
        claims = list(self._claims.values())
        is_member = self.member is not None and not self.member.has_left
        if claims or is_member:
            with suppress(StudyError), self._connection.expected():
                self._trials.renew(claims)
                self._present()
        return bool(claims) or is_member


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
