"""Locks of a shared folder, seen from another host: held, free, and free while their holder lives."""

import multiprocessing
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.errors import StudyError
from autotune.study.members import MemberPhase
from autotune.study.storage.lock import LockProbe
from tests.study.test_members import member, opened


def _holds(journal: Path, uuid: str) -> bool | None:
    return LockProbe(journal, "0").holds(uuid)


def test_a_lock_is_seen_by_other_processes_until_it_is_let_go(tmp_path: Path) -> None:
    """It is held, then free; of a member without a file nothing can be told."""
    journal = tmp_path / "s.journal"
    probe = LockProbe(journal, "a1")
    probe.hold()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_holds, (journal, "a1")) is True
        probe.close()
        assert pool.apply(_holds, (journal, "a1")) is None
        assert pool.apply(_holds, (journal, "../../etc/passwd")) is None


def test_a_killed_member_leaves_no_file_for_long(tmp_path: Path) -> None:
    """The next one deletes its file, as soon as it is known to be gone."""
    clock = VirtualClock()
    killed, alive = opened(tmp_path, clock), opened(tmp_path, clock)
    killed.join(member("a1", clock))
    alive.join(member("b2", clock))
    killed.members.probe.close()  # type: ignore[union-attr]
    (tmp_path / "s.a1.alive").touch()
    opened(tmp_path, clock, gone="host-a1").join(member("c3", clock))
    assert {path.name for path in tmp_path.glob("*.alive")} == {"s.b2.alive", "s.c3.alive"}


def test_a_disk_whose_locks_do_not_hold_is_refused(tmp_path: Path) -> None:
    """A host whose lock is free here, and that goes on giving signs of life, would write at the same time."""
    clock = VirtualClock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    first.join(member("a1", clock))
    first.members.probe.close()  # type: ignore[union-attr]
    (tmp_path / "s.a1.alive").touch()
    second.join(member("b2", clock))
    first.members.describe(phase=MemberPhase.EXPLORING)
    second.refresh()  # the last that a killed one has written may be read only now
    first.members.describe(phase=MemberPhase.EXPLORING)
    with pytest.raises(StudyError, match="do not work between host-a1 and this host"):
        second.refresh()
