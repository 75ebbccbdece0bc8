"""Members of a study: who joins whom, who counts as at work, and what is no member."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.records import Purpose
from autotune.study.claims import LEASE_S, Owner
from autotune.study.members import ATTRIBUTE, Member, MemberPhase, Role, members_among
from autotune.study.record import StudyRecord
from autotune.study.storage.journal import JournalFolder
from tests.runs import MakeTrial

CHOICES = {"data.batch_size": (8, 16)}


def opened(folder: Path, clock: VirtualClock, *, gone: str = "") -> StudyRecord:
    """Return a study object as another process has it; the host of that name is known to be gone."""
    owner = Owner(about={"host": "x"}, is_gone=lambda about: about.get("host") == gone, clock=clock, ends_s=2000.0)
    return StudyRecord("s", JournalFolder(folder), owner=owner)


def member(uuid: str, clock: VirtualClock, **changes: object) -> Member:
    """Return a member that has a search and a machine of its own."""
    now = clock.utc()
    made = Member(
        uuid=uuid,
        role=Role.SEARCH,
        search=f"search-{uuid}",
        machine=f"machine-{uuid}",
        baseline="b",
        about={"host": f"host-{uuid}"},
        since_utc=now,
        renewed_utc=now,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_who_comes_second_joins_the_first(tmp_path: Path) -> None:
    """Their trials belong to one search; with other values in the config, it is another search."""
    clock = VirtualClock()
    first, second, third = (opened(tmp_path, clock) for _ in range(3))
    assert first.join(member("a", clock)).search == "search-a"
    clock.wait(5.0)
    assert second.join(member("b", clock)).search == "search-a"
    assert third.join(member("c", clock, baseline="other")).search == "search-c"
    first.refresh()
    assert [one.uuid for one in first.members.others()] == ["b", "c"]


def test_of_two_that_come_at_once_one_joins_the_other(tmp_path: Path) -> None:
    """Whoever was written first, the order of joining decides."""
    clock = VirtualClock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    assert second.join(member("b", clock)).search == "search-b"
    assert first.join(member("a", clock)).search == "search-a"
    second.refresh()
    assert [one.search for one in second.members.others()] == ["search-a"]


def test_nobody_joins_who_has_left_or_was_killed(tmp_path: Path) -> None:
    """A search that has ended, or whose process is known to be gone, is not gone on with."""
    clock = VirtualClock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    first.join(member("a", clock))
    first.close()
    second.join(member("b", clock))
    clock.wait(1.0)
    third = opened(tmp_path, clock, gone="host-b")
    assert third.join(member("c", clock)).search == "search-c"
    assert third.members.others() == []


def test_a_member_that_gives_no_sign_of_life_counts_no_more(tmp_path: Path) -> None:
    """It is the observer's own clock that counts, however wrong that of the member is."""
    clock, other_clock = VirtualClock(), VirtualClock()
    other_clock.utc = lambda: clock.utc() + timedelta(hours=1)  # type: ignore[method-assign]
    first, second = opened(tmp_path, other_clock), opened(tmp_path, clock)
    first.join(member("a", other_clock))
    assert second.join(member("b", clock)).search == "search-b"  # side by side
    assert [one.uuid for one in second.members.others()] == ["a"]
    clock.wait(LEASE_S / 2)
    first.members.describe(phase=MemberPhase.CONFIRMING, point="p")
    second.refresh()
    assert [(one.phase, one.point) for one in second.members.others()] == [(MemberPhase.CONFIRMING, "p")]
    clock.wait(LEASE_S + 1.0)
    assert second.members.others() == []


def test_trials_of_others_are_taken_in_once(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Finished ones become part of the record in the order of their numbers; those that go on are pending."""
    clock = VirtualClock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    first.join(member("a", clock))
    second.join(member("b", clock))
    values = {"data.batch_size": 8}
    theirs = first.begin(values, CHOICES, purpose=Purpose.EXPLORE.value, machine="machine-a")
    own = second.begin({"data.batch_size": 16}, CHOICES, purpose=Purpose.EXPLORE.value)
    second.finish(own, make_trial({"data.batch_size": 16}, 60.0))
    assert second.refresh() == []
    assert second.members.trials_elsewhere == [values]
    first.finish(theirs, make_trial(values, 50.0))
    assert [trial.values for trial in second.refresh()] == [values]
    assert second.refresh() == []
    assert [trial.number for trial in second.records()] == [0, 1]
    assert list(second.members.trials_elsewhere) == []


def test_of_two_trials_of_one_point_the_later_is_taken(tmp_path: Path) -> None:
    """Whoever has the lower number goes on with it."""
    clock = VirtualClock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    ours, theirs = first.begin({"data.batch_size": 8}, CHOICES), second.begin({"data.batch_size": 8}, CHOICES)
    assert not first.is_taken(ours)
    assert second.is_taken(theirs)
    second.abandon(theirs)
    first.abandon(ours)
    assert not second.is_taken(second.begin({"data.batch_size": 8}, CHOICES))


@pytest.mark.parametrize(
    "written",
    [
        None,
        7,
        {},
        {"role": "boss"},
        {"since_utc": "yesterday"},
        {"since_utc": "2030-01-01T00:00:00"},
        {"uuid": "b"},
        {"search": "x" * 10_000},
        {"n": "1"},
        {"about": [1]},
        {"code": {"a": {}}},
    ],
)
def test_what_is_no_member_is_left_out(written: object) -> None:
    """Others can write whatever they like into a shared storage."""
    good = member("a", VirtualClock()).attribute()
    assert members_among({ATTRIBUTE + "a": good})
    spoilt = {**good, **written} if isinstance(written, dict) and written else written
    assert members_among({ATTRIBUTE + "a": spoilt, "else": good}) == []
