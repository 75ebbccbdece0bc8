"""Membership of this process in a study, and what it knows of the other members."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.errors import StudyError
from autotune.study.claims import LeaseWatch, Owner
from autotune.study.members import Member, joint_search
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.storage.lock_probe import LockProbe

_MEMBERS = "members"  # beside the names of Optuna studies, in the watch over signs of life


class Membership:
    """Membership in one study.

    What writes is called in the storage's thread alone, which also renews it: so nothing that is said here is
    overwritten by an older state.

    Args:
        trials: The study in its storage.
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
