"""Record of a study: its trials, kept as Optuna trials, and the processes that run them.

A trial is claimed with its parameters when it begins, and finished with its score, a few scalar attributes and the
whole `TrialRecord` as one JSON attribute. What was finished is never rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from autotune.errors import StorageAway, StudyError
from autotune.events import OnRemark, no_remark
from autotune.records import Scalar, TrialRecord, Values
from autotune.study.calls import StorageCalls
from autotune.study.claims import NOBODY, Claim, Owner, distribution_of, uuid_of
from autotune.study.entry import finished_trial, read_records, starts_of
from autotune.study.members import ATTRIBUTE, Member, MemberPhase, joint_search, members_among
from autotune.study.optuna_trials import News
from autotune.study.storage.lock import LockProbe
from autotune.study.storage.storage import Storage
from autotune.study.summary import RATING, Rating, ratings_among


class StudyRecord:
    """All trials of one identity, in the order in which they ended, and the claims of this process.

    Where its storage is a server, a trial goes on while that cannot be reached: what has finished is kept in a file of
    this machine, and written when it answers again.

    Args:
        storage: Where it is kept; it is created there if it does not exist.
        pending: File for what a server has not taken yet; None to raise `StorageAway` instead.
        reads_only: Whether nothing will be written: then nothing is left beside what is read.
        remark: Called with what the user should know of the storage.

    Attributes:
        calls: The calls to its storage, and the finished trials that wait for that.
        members: The processes that are at work on it.
        ratings: What searches have kept of the worth of each change of their answers, by search.
        torn_bytes: Bytes of a torn last entry that were cut off at opening.

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
        remark: OnRemark = no_remark,
    ) -> None:
        self.name = name
        self.where = storage.where(name)
        self._owner = owner
        self._claims: dict[str, Claim] = {}
        self._own_uuids: set[str | None] = set()
        self.calls = StorageCalls(name, self.where, owner, self._renew, self._delivered, remark)
        self._remark = remark
        self.members = Members(self.calls, owner)
        found, attributes = self.calls.open(name, storage, pending, reads_only=reads_only)
        self.torn_bytes = self.calls.connection.torn_bytes
        self.ratings = ratings_among(attributes)
        self._starts = starts_of(found)
        read = read_records(found, self.calls.waiting, self.where)
        self._records = [record for _, record in read]
        waiting = {uuid_of(trial) for trial in self.calls.waiting}
        self._waiting = {uuid: record for uuid, record in read if uuid in waiting}

    def records(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return list(self._records)

    def join(self, member: Member) -> Member:
        """Become a member of the study, and take part in the joint search of those who are at work in it.

        Args:
            member: How this process describes itself, with the search that it would begin by itself.

        Returns:
            The member, with the name of the search that its trials belong to.
        """
        joined = self.calls.insist(lambda: self.calls.call(partial(self.members.join, member)))
        self.refresh()
        return joined

    def refresh(self) -> list[TrialRecord]:
        """Read what others have written since the last time; their trials are in `records` from now on.

        Returns:
            Their trials that have ended with a record, oldest first; none while the storage is away.

        Raises:
            StudyError: The storage cannot be read, or the locks of a shared journal do not hold.
        """
        try:
            news = self.calls.call(partial(self.calls.trials.news, self._own() | self._own_uuids))
        except StorageAway:
            return []
        self.members.update(news)
        read = read_records(news.ended, (), self.where)
        new = [record for uuid, record in read if uuid not in self._own_uuids]
        if new:
            self._records.extend(new)
            self._starts.update(starts_of(news.ended, always=bool(self._starts)))
            # As whoever opens the study later reads them.
            self._records.sort(key=lambda record: (self._starts.get(record.number, ("~", "")), record.number))
        return new

    def begin(
        self, values: Values, choices: Mapping[str, Sequence[Scalar]], *, uuid: str | None = None, **about: Scalar
    ) -> Claim:
        """Claim the next trial.

        It is in the storage when this returns, unless that is away, or is a server that nobody else writes to now.

        Args:
            uuid: Its name, whichever storage it is in; None for a new one.
        """
        self.calls.deliver()
        claim = Claim(
            number=max(self.calls.trials.last, *(record.number for record in self._records), -1) + 1,
            values=values,
            distributions={path: distribution_of(some) for path, some in choices.items()},
            about={**self._owner.about, **about},
            uuid=uuid or uuid4().hex,
        )
        self._claims[claim.uuid] = claim
        self._own_uuids.add(claim.uuid)
        make = partial(self.calls.trials.make, claim, self._own())
        with suppress(StorageAway) if self.calls.pending else nullcontext():
            if self.calls.pending and not self.members.others():
                self.calls.post(make)
            else:
                self.calls.call(make)
        return claim

    def is_taken(self, claim: Claim) -> bool:
        """Return whether somebody else makes a trial of the same point, and was first; False if that is not known."""
        try:
            return bool(claim.is_made) and self.calls.call(partial(self.calls.trials.is_taken, claim))
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
        if self.calls.pending is None:
            number = self.calls.call(partial(self.calls.trials.finish, finished))
            self._claims.pop(claim.uuid, None)
            return self._renumbered(written, number)
        self._waiting[claim.uuid] = written
        self.calls.pending.add(finished)  # first: it is kept, whatever becomes of the server and of this process
        self.calls.deliver()
        return written

    def _delivered(self, uuid: str | None, number: int) -> bool:
        """Note that a trial that waited is in the storage; return whether its record is known here."""
        self._claims.pop(uuid or "", None)
        record = self._waiting.pop(uuid, None)
        if record is not None:  # else nobody can read it, or it waited twice
            self._renumbered(record, number)
        return record is not None

    def _renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        if number == record.number:
            return record
        renumbered = replace(record, number=number)
        self._records[self._records.index(record)] = renumbered
        return renumbered

    def abandon(self, claim: Claim, *, why: str = "") -> None:
        """Give up a claim on a trial that was interrupted, as far as that can be written.

        Args:
            why: What was in its way, for people; empty if it was the end of the search.
        """
        self._claims.pop(claim.uuid, None)
        with suppress(StudyError):
            self.calls.call(partial(self.calls.trials.give_up, claim, why))

    def close_abandoned(self) -> int:
        """Close the trials of others that nobody makes any more: they were interrupted.

        Those whose process is known to be gone are closed at once, others when they gave no sign of life for a minute:
        each `begin` looks again. What waits for the storage is written first: it finishes trials of an earlier search.

        Returns:
            Their number.
        """
        self.calls.write_pending()
        return self.calls.insist(lambda: self.calls.call(partial(self.calls.trials.close_lapsed, self._own())))

    def keep_rating(self, search: str, rating: Rating) -> None:
        """Keep what each change of a search's answer is worth."""
        self.ratings[search] = rating
        self.note(RATING + search, asdict(rating))

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the study, a JSON value, in place of an earlier one."""
        self.calls.call(partial(self.calls.trials.note, name, value))

    def close(self) -> None:
        """Give up all claims, write what waits for the storage as far as there is time, and close the storage.

        Who only reads writes nothing: a search may be at work on the same file.
        """
        for claim in list(self._claims.values()):
            if claim.uuid not in self._waiting:
                self.abandon(claim)
        self.members.describe(phase=MemberPhase.LEFT)
        if self._owner is not NOBODY:
            self.calls.ask_again()  # the file may be lost with this machine
            with suppress(StudyError):
                self.calls.write_pending()
            if said := self.calls.undelivered:
                self._remark(said)
        if self.members.probe is not None:
            self.members.probe.close()
        with suppress(StudyError):
            self.calls.call(self.calls.connection.close)

    def _own(self) -> set[str | None]:
        """Return the UUIDs of the trials that this process makes, or has to write."""
        return {*self._claims, *map(uuid_of, self.calls.waiting)}

    def renew(self) -> None:
        """Give a sign of life for each claim; done by itself every few seconds."""
        self.calls.thread.call(self._renew)

    def _renew(self) -> bool:
        claims, own = list(self._claims.values()), self.members.own
        is_member = own is not None and not own.has_left
        if claims or is_member:
            with suppress(StudyError), self.calls.connection.expected():
                self.calls.trials.renew(claims)
                self.members.present()
        return bool(claims) or is_member


class Members:
    """Processes that are at work on a study: this one, once it has joined, and the others as of the latest refresh.

    Attributes:
        own: This process as a member; None while it is none.
        seen: All members, those that have left included, who joined first in front.
        trials_elsewhere: Values of the trials that others run.
        probe: Probe of the locks of this member; None while it is none, or where nothing hangs on the locks of a disk.
    """

    def __init__(self, calls: StorageCalls, owner: Owner) -> None:
        self.own: Member | None = None
        self.seen: Sequence[Member] = ()
        self.trials_elsewhere: Sequence[Values] = ()
        self._calls = calls
        self._owner = owner
        self.probe: LockProbe | None = None
        self._free_locks: dict[str, int | None] = {}  # of members, with their signs of life when that was known

    def join(self, member: Member) -> Member:
        """Become a member, in the storage's thread; of two that come at once, one sees the other at least."""
        if self._calls.connection.lock_probe is not None:
            self.probe = self._calls.connection.lock_probe(member.uuid)
            self.probe.hold()
        self.own = member
        self.present()
        self.seen = members_among(self._calls.trials.attributes())
        search = joint_search(member, self.others(), self._owner.clock.utc())
        if search != member.search:
            self.present(search=search)
        return self.own

    def present(self, **changes: Any) -> None:
        """Write a sign of life, and what has changed; nothing for who is no member, or has left.

        Called in the storage's thread alone, which also renews it: so nothing is overwritten by an older state.
        """
        if self.own is not None and not self.own.has_left:
            clock = self._owner.clock
            left_s = max(0.0, self._owner.ends_s - clock.now_s())
            self.own = replace(self.own, **changes).renewed(clock.utc(), left_s)
            self._calls.trials.note(ATTRIBUTE + self.own.uuid, self.own.attribute())

    def describe(self, *, phase: MemberPhase, point: str | None = None, left_because: str = "") -> None:
        """Tell the others what this member does, as far as that can be written; nothing for who is none.

        Args:
            left_because: Reason for which it leaves; empty where the study needs no more.
        """
        if self.own is not None:
            present = partial(self.present, phase=phase, point=point, left_because=left_because)
            with suppress(StudyError):
                self._calls.post(present)

    def update(self, news: News) -> None:
        """Take in what others have written.

        Raises:
            StudyError: The lock of a member at work does not hold here, and all hangs on the locks of a disk.
        """
        self.trials_elsewhere = news.pending
        self.seen = members_among(news.attributes)
        if self.probe is None:
            return
        alive = self.others()
        for one in self.seen:
            if not (one in alive or one.has_left or (self.own and one.uuid == self.own.uuid)):
                self.probe.delete_left(one.uuid)
        for one in alive:
            if self.probe.holds(one.uuid) is not False:
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
                    where=self._calls.where,
                    remedy="Keep the study in PostgreSQL, or mount the disk with locks (for NFS: without nolock).",
                )

    def others(self) -> list[Member]:
        """Return the other members that are at work, as far as it is known; who joined first in front.

        One that was killed counts until it has given no sign of life for a minute.
        """
        own, leases = self.own.uuid if self.own else None, self._calls.leases
        others = (one for one in self.seen if one.uuid != own and not one.has_left)
        return [one for one in others if not leases.has_lapsed("members", one.uuid, {**one.about, "n": one.n})]

    def on_record(self) -> list[Member]:
        """Read all members, those that have left included; who joined first in front."""
        return members_among(self._calls.call(self._calls.trials.attributes))
