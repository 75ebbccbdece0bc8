"""Record of a study: its trials as Optuna trials, and the processes that run them.

A trial is claimed with its parameters, and finished with its score, scalar attributes and `TrialRecord`.
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
from autotune.study.claims import NO_OWNER, Claim, Owner, distribution_of, uuid_of
from autotune.study.entry import finished_trial, read_records, starts_of
from autotune.study.members import ATTRIBUTE, Member, MemberPhase, joint_search, members_among
from autotune.study.optuna_trials import Updates
from autotune.study.storage.lock import LockProbe
from autotune.study.storage.storage import Storage
from autotune.study.summary import RATING, Rating, ratings_among


class StudyRecord:
    """Trials of one identity, in order of completion, and the claims of this process.

    Args:
        storage: Its storage; the study is created if missing.
        pending: File for trials while a server is unreachable; None to raise `StorageAway` instead.
        reads_only: True to create no files.

    Attributes:
        torn_bytes: Bytes of a torn last entry that were cut off.

    Raises:
        StudyError: The storage cannot be read or written; from every method that uses it.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        *,
        pending: Path | None = None,
        owner: Owner = NO_OWNER,
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
        return list(self._records)

    def join(self, member: Member) -> Member:
        """Become a member; return it with the search that the active members share."""
        joined = self.calls.retry(lambda: self.calls.call(partial(self.members.join, member)))
        self.refresh()
        return joined

    def refresh(self) -> list[TrialRecord]:
        """Read other processes' changes; return new trials, oldest first."""
        try:
            updates = self.calls.call(partial(self.calls.trials.updates, self._own() | self._own_uuids))
        except StorageAway:
            return []
        self.members.update(updates)
        read = read_records(updates.ended, (), self.where)
        new = [record for uuid, record in read if uuid not in self._own_uuids]
        if new:
            self._records.extend(new)
            self._starts.update(starts_of(updates.ended, always=bool(self._starts)))
            # same order as when the study is opened later
            self._records.sort(key=lambda record: (self._starts.get(record.number, ("~", "")), record.number))
        return new

    def begin(
        self, values: Values, choices: Mapping[str, Sequence[Scalar]], *, uuid: str | None = None, **about: Scalar
    ) -> Claim:
        """Claim the next trial; it is stored at return unless the server is unreachable or has no other writers."""
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
        create = partial(self.calls.trials.create, claim, self._own())
        with suppress(StorageAway) if self.calls.pending else nullcontext():
            if self.calls.pending and not self.members.others():
                self.calls.post(create)
            else:
                self.calls.call(create)
        return claim

    def is_taken(self, claim: Claim) -> bool:
        """Return whether another process is known to have claimed the same point first."""
        try:
            return bool(claim.is_written) and self.calls.call(partial(self.calls.trials.is_taken, claim))
        except StorageAway:
            return False

    def finish(
        self, claim: Claim, record: TrialRecord, *, score: float | None = None, speeds: Sequence[float] = ()
    ) -> TrialRecord:
        """Finish a claimed trial, which is on disk at return; return the record with its number.

        Args:
            score: Ratio to the baseline's; None without a comparable measurement.
            speeds: Samples per second at even intervals of the window.

        Raises:
            StudyError: It couldn't be written; `records` has it nevertheless.
        """
        written = replace(record, number=claim.number)
        self._records.append(written)  # it was measured: answers from this process include it
        finished = finished_trial(claim, record, score=score, speeds=speeds)
        if self.calls.pending is None:
            number = self.calls.call(partial(self.calls.trials.finish, finished))
            self._claims.pop(claim.uuid, None)
            return self._renumbered(written, number)
        self._waiting[claim.uuid] = written
        self.calls.pending.add(finished)  # first: survives a crash
        self.calls.deliver()
        return written

    def _delivered(self, uuid: str | None, number: int) -> bool:
        self._claims.pop(uuid or "", None)
        record = self._waiting.pop(uuid, None)
        if record is not None:  # None: unreadable, or delivered twice
            self._renumbered(record, number)
        return record is not None

    def _renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        if number == record.number:
            return record
        renumbered = replace(record, number=number)
        self._records[self._records.index(record)] = renumbered
        return renumbered

    def abandon(self, claim: Claim) -> None:
        """Give up the claim on an interrupted trial."""
        self._claims.pop(claim.uuid, None)
        with suppress(StudyError):
            self.calls.call(partial(self.calls.trials.give_up, claim))

    def close_abandoned(self) -> int:
        """Close other processes' abandoned trials; return their number."""
        self.calls.write_pending()  # first: finishes trials of an earlier search
        return self.calls.retry(lambda: self.calls.call(partial(self.calls.trials.close_lapsed, self._own())))

    def keep_rating(self, search: str, rating: Rating) -> None:
        self.ratings[search] = rating
        self.note(RATING + search, asdict(rating))

    def note(self, name: str, value: object) -> None:
        self.calls.call(partial(self.calls.trials.note, name, value))

    def close(self) -> None:
        """Give up all claims, write waiting trials and close the storage; readers write nothing."""
        for claim in list(self._claims.values()):
            if claim.uuid not in self._waiting:
                self.abandon(claim)
        self.members.describe(phase=MemberPhase.LEFT)
        if self._owner is not NO_OWNER:
            self.calls.retry_now()  # the pending file may be lost with this machine
            with suppress(StudyError):
                self.calls.write_pending()
            if undelivered := self.calls.undelivered:
                self._remark(undelivered)
        if self.members.probe is not None:
            self.members.probe.close()
        with suppress(StudyError):
            self.calls.call(self.calls.connection.close)

    def _own(self) -> set[str | None]:
        return {*self._claims, *map(uuid_of, self.calls.waiting)}

    def renew(self) -> None:
        """Write a heartbeat for each claim; automatic every few seconds."""
        self.calls.thread.call(self._renew)

    def _renew(self) -> bool:
        claims, own = list(self._claims.values()), self.members.own
        is_member = own is not None and not own.has_left
        if claims or is_member:
            with suppress(StudyError), self.calls.connection.expected():
                self.calls.trials.renew(claims)
                self.members.heartbeat()
        return bool(claims) or is_member


class Members:
    """Active processes of a study, as of the latest refresh.

    Attributes:
        own: This process, once it has joined.
        seen: All members, also those that left, in order of joining.
        trials_elsewhere: Values of other processes' running trials.
        probe: Set if the storage needs file locks.
    """

    def __init__(self, calls: StorageCalls, owner: Owner) -> None:
        self.own: Member | None = None
        self.seen: Sequence[Member] = ()
        self.trials_elsewhere: Sequence[Values] = ()
        self._calls = calls
        self._owner = owner
        self.probe: LockProbe | None = None
        self._free_locks: dict[str, int | None] = {}  # heartbeats of members when their lock was found free

    def join(self, member: Member) -> Member:
        """Become a member; of two that join at once, at least one sees the other."""
        if self._calls.connection.lock_probe is not None:
            self.probe = self._calls.connection.lock_probe(member.uuid)
            self.probe.hold()
        self.own = member
        self.heartbeat()
        self.seen = members_among(self._calls.trials.attributes())
        search = joint_search(member, self.others(), self._owner.clock.utc())
        if search != member.search:
            self.heartbeat(search=search)
        return self.own

    def heartbeat(self, **changes: Any) -> None:
        """Write a heartbeat and changes, if active; only in the storage's thread, so that no older state wins."""
        if self.own is not None and not self.own.has_left:
            clock = self._owner.clock
            left_s = max(0.0, self._owner.ends_s - clock.now_s())
            self.own = replace(self.own, **changes, renewed_utc=clock.utc(), left_s=left_s, n=self.own.n + 1)
            self._calls.trials.note(ATTRIBUTE + self.own.uuid, self.own.attribute())

    def describe(self, *, phase: MemberPhase, point: str | None = None, left_because: str = "") -> None:
        """Publish what this member does, or why it leaves."""
        if self.own is not None:
            heartbeat = partial(self.heartbeat, phase=phase, point=point, left_because=left_because)
            with suppress(StudyError):
                self._calls.post(heartbeat)

    def update(self, updates: Updates) -> None:
        """Take in other processes' changes.

        Raises:
            StudyError: The file lock of an active member isn't visible here.
        """
        self.trials_elsewhere = updates.pending
        self.seen = members_among(updates.attributes)
        if self.probe is None:
            return
        alive = self.others()
        for one in self.seen:
            if not (one in alive or one.has_left or (self.own and one.uuid == self.own.uuid)):
                self.probe.delete_stale(one.uuid)
        for one in alive:
            if self.probe.holds(one.uuid) is not False:
                continue
            # it may have been killed after its last heartbeat: only a later one proves that locks fail
            if one.uuid not in self._free_locks:
                self._free_locks[one.uuid] = None
            elif (before := self._free_locks[one.uuid]) is None:
                self._free_locks[one.uuid] = one.n
            elif one.n > before:
                raise StudyError(
                    f"file locks on this disk do not work between {one.host} and this host, so both would write the "
                    "journal at once",
                    where=self._calls.where,
                    remedy="Keep the study in PostgreSQL, or mount the disk with locks (for NFS: without nolock).",
                )

    def others(self) -> list[Member]:
        """Return the other active members, in order of joining; a killed one counts until its lease lapses."""
        own, leases = self.own.uuid if self.own else None, self._calls.leases
        others = (one for one in self.seen if one.uuid != own and not one.has_left)
        return [one for one in others if not leases.has_lapsed("members", one.uuid, {**one.about, "n": one.n})]

    def on_record(self) -> list[Member]:
        return members_among(self._calls.call(self._calls.trials.attributes))
