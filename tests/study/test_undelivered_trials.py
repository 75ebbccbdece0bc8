"""Trials that wait for their storage: whatever has become of their file, what finishes is kept and written once."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.errors import StorageAway
from autotune.events import OnRemark, no_remark
from autotune.options import SearchOptions
from autotune.search.answer import Study as KnownStudy
from autotune.search.open import Session, open_search
from autotune.search.problem import Problem, open_problem
from autotune.study.claims import LEASE_S, NO_OWNER, Owner
from autotune.study.entry import UndeliveredTrials
from autotune.study.record import StudyRecord
from autotune.study.storage.storage import Connection, Storage
from tests.study.storages import CHOICES, VALUES, at, record
from tests.study.test_members import member


class Remote:
    """Storage that is taken for a server's; see `Storage`."""

    away = False  # True while no storage of this kind answers

    def __init__(self, storage: Storage) -> None:
        self.where, self.latest, self.archive = storage.where, storage.latest, storage.archive
        self.names, self.discard = storage.names, storage.discard
        self._storage = storage

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """See `Storage.connect`."""
        connection = self._storage.connect(study, reads_only=reads_only)

        @contextmanager
        def expected() -> Iterator[None]:
            if Remote.away:
                raise StorageAway("no answer", where="there", remedy="")
            with connection.expected():
                yield

        return replace(connection, is_remote=True, expected=expected)


def opened(folder: Path, owner: Owner | None = None, remark: OnRemark = no_remark) -> StudyRecord:
    """Open a study as a search does, or as another owner."""
    owner = owner or Owner(about={}, is_gone=lambda _claim: False, clock=VirtualClock())
    return StudyRecord(
        "s", Remote(at("journal:studies", folder)), pending=folder / "s.pending", owner=owner, remark=remark
    )


def details(folder: Path) -> list[str]:
    """Return what is known, what waits included."""
    study = opened(folder, NO_OWNER)
    study.close()
    return [one.detail for one in study.records()]


@pytest.fixture
def waiting(tmp_path: Path) -> bytes:
    """Content of a file in which one trial waits; it is not in the storage."""
    study, path = opened(tmp_path), tmp_path / "s.pending"
    trials = study.calls.trials
    finish = trials.finish
    seen = []
    trials.finish = lambda finished: (seen.append(path.read_bytes()), finish(finished))[1]  # type: ignore[method-assign, func-returns-value]
    study.finish(study.begin(VALUES, CHOICES), replace(record(), detail="waited"), score=1.0)
    study.close()
    (tmp_path / "studies" / "s.journal").unlink()
    return seen[0]


@pytest.mark.parametrize("torn", [b'{"form', b"\xff\x00", b"[]"])
def test_a_trial_behind_a_torn_line_is_kept(tmp_path: Path, waiting: bytes, torn: bytes) -> None:
    """A crash, or a full disk, may have left half a line."""
    (tmp_path / "s.pending").write_bytes(torn)
    (tmp_path / "good.pending").write_bytes(waiting)
    where = at("journal:studies", tmp_path).where("s")
    (trial,) = UndeliveredTrials(tmp_path / "good.pending", where).trials
    UndeliveredTrials(tmp_path / "s.pending", where).add(trial)
    assert details(tmp_path) == ["waited"]


def test_who_only_reads_leaves_it_alone(tmp_path: Path, waiting: bytes) -> None:
    """A search on this machine may add to it at the same moment."""
    (tmp_path / "s.pending").write_bytes(waiting)
    assert details(tmp_path) == ["waited"]
    assert (tmp_path / "s.pending").read_bytes() == waiting


@pytest.mark.parametrize("way", ["twice", "no record", "no claim", "another claim", "infinite"])
def test_a_line_that_is_not_as_it_was_written_stops_nothing(tmp_path: Path, waiting: bytes, way: str) -> None:
    """The search goes on, and what can be read is there once."""
    line = json.loads(waiting)
    if way == "no record":
        line["attributes"]["record"] = {"format": 2}
    elif way == "no claim":
        del line["attributes"]["claim"]
    elif way == "another claim":
        line["attributes"]["claim"]["uuid"] = "x"
    elif way == "infinite":
        line["score"] = 10**400
    (tmp_path / "s.pending").write_bytes(json.dumps(line).encode() + b"\n" + (waiting if way == "twice" else b""))
    study = opened(tmp_path)
    study.finish(study.begin(VALUES, CHOICES), replace(record(), detail="next"), score=1.0)
    study.close()
    assert details(tmp_path) == (["waited", "next"] if way == "twice" else ["next"])
    assert not (tmp_path / "s.pending").exists()


def problem_with_waiting(folder: Path, waiting: bytes) -> Problem:
    """Return a problem on such a storage, of which these trials wait."""
    (folder / "config.yaml").write_text("batch_size: 4\nautotune: {command: 'true', knobs: {batch_size: [4, 8]}}\n")
    problem = open_problem(folder / "config.yaml", command=None, state_dir=folder / "state")
    problem.place.__dict__["storage"] = storage = Remote(at("journal:studies", folder))
    problem.state.create()
    lines = ({**json.loads(line), "where": storage.where(problem.study)} for line in waiting.splitlines())
    problem.state.pending(problem.study).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return problem


def test_a_new_record_begins_without_what_waits(tmp_path: Path, waiting: bytes) -> None:
    """It is written to the old one, which is kept."""
    problem = problem_with_waiting(tmp_path, waiting)
    clock = SystemClock()
    options = SearchOptions(budget_s=60.0, fresh=True, allow_busy_gpu=True)
    with open_search(problem, options, Session(started_s=clock.now_s()), clock, lambda _event: None) as search:
        assert search.study.records() == []
    (old,) = (tmp_path / "studies").glob("*.until-*.journal")
    assert '"detail":"waited"' in old.read_text()
    assert not problem.state.pending(problem.study).exists()


def finished(study: StudyRecord) -> int:
    """Make a trial; return the number that its user is told at the end."""
    claim = study.begin(VALUES, CHOICES)
    told = claim.number
    assert study.finish(claim, replace(record(), detail=str(told)), score=1.0).number == told
    return told


@pytest.fixture
def before_and_in_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search whose storage went away in the middle of trial 2, behind an interrupted one; trials 3 and 4 followed."""
    remarks: list[str] = []
    study = opened(tmp_path, remark=remarks.append)
    finished(study)
    study.abandon(study.begin(VALUES, CHOICES))
    claim = study.begin(VALUES, CHOICES)
    study.calls.write_pending()
    monkeypatch.setattr(Remote, "away", True)
    assert study.finish(claim, replace(record(), detail="2"), score=1.0, speeds=(59.0, 61.0)).number == 2
    assert [finished(study), finished(study)] == [3, 4]
    study.close()
    assert ": 3 (no answer). The next search on this machine writes them" in remarks[-1]
    monkeypatch.setattr(Remote, "away", False)


def test_what_waits_is_tried_once_more_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also right behind an outage: who is told to leave may lose the machine, and the file with it."""
    study = opened(tmp_path)
    claim = study.begin(VALUES, CHOICES)
    monkeypatch.setattr(Remote, "away", True)
    study.finish(claim, record(), score=1.0)
    monkeypatch.setattr(Remote, "away", False)
    study.close()
    assert not (tmp_path / "s.pending").exists()
    assert len(opened(tmp_path, NO_OWNER).records()) == 1


def search_again(folder: Path, remark: OnRemark = no_remark) -> StudyRecord:
    """Open the study as the next search of this machine does."""
    study = opened(folder, Owner(about={}, is_gone=lambda _claim: True, clock=VirtualClock()), remark)
    study.close_abandoned()
    return study


@pytest.mark.usefixtures("before_and_in_an_outage")
def test_a_trial_keeps_its_number_through_an_outage(tmp_path: Path) -> None:
    """The number that a user saw means that trial: while it waits, and when the next search has written it."""
    for study in (opened(tmp_path, NO_OWNER), search_again(tmp_path), opened(tmp_path, NO_OWNER)):
        assert [(one.number, one.detail) for one in study.records()] == [(0, "0"), (2, "2"), (3, "3"), (4, "4")]
        study.close()
    trials = optuna.load_study(study_name="s", storage=at("journal:studies", tmp_path).connect("s").storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]
    assert trials[2].intermediate_values == {0: 59.0, 1: 61.0}  # finished where it stood, with all that it showed
    assert trials[2].user_attrs["samples_per_s"] == 60.0
    study = search_again(tmp_path)
    assert finished(study) == 5
    study.close()


@pytest.mark.usefixtures("before_and_in_an_outage")
def test_a_trial_that_was_closed_by_another_machine_keeps_its_number(tmp_path: Path) -> None:
    """It has to be added anew; one whose number is taken by then is renamed, and that is said."""
    other = StudyRecord(
        "s", at("journal:studies", tmp_path), owner=Owner(about={}, is_gone=lambda _: True, clock=SystemClock())
    )
    other.close_abandoned()
    assert finished(other) == 3
    other.close()
    remarks: list[str] = []
    study = search_again(tmp_path, remarks.append)
    said = " ".join(remarks)
    study.close()
    assert sorted((one.number, one.detail) for one in study.records()) == [
        (0, "0"),
        (2, "2"),
        (3, "3"),
        (5, "3"),
        (6, "4"),
    ]
    assert "trial 3 is now 5, 4 is now 6" in said


@pytest.mark.usefixtures("before_and_in_an_outage")
def test_who_cannot_reach_the_storage_is_told_what_waits(tmp_path: Path) -> None:
    """`status` and `apply` fail without a server, and say that nothing was lost."""
    problem = problem_with_waiting(tmp_path, (tmp_path / "s.pending").read_bytes())

    def no_answer(_pattern: str) -> None:
        raise StorageAway("no answer", where="there", remedy="Wait.")

    problem.storage.latest = no_answer  # type: ignore[method-assign]
    with pytest.raises(StorageAway, match="no answer; trials waiting here to be delivered: 3"):
        KnownStudy.of(problem)


def test_nobody_counts_as_gone_for_an_outage(tmp_path: Path) -> None:
    """Signs of life that nobody could write are not missed; whoever is silent afterwards counts no more."""
    clock = VirtualClock()
    owners = [Owner(about={"host": one}, is_gone=lambda _claim: False, clock=clock) for one in "ab"]
    first, second = (opened(tmp_path, owner) for owner in owners)
    for uuid, study in {"a": first, "b": second}.items():
        study.join(member(uuid, clock))
    second.refresh()
    Remote.away = True
    try:
        assert second.refresh() == []
        clock.wait(2 * LEASE_S)
        assert [one.uuid for one in second.members.others()] == ["a"]
    finally:
        Remote.away = False
    second.refresh()
    clock.wait(LEASE_S - 1.0)
    assert [one.uuid for one in second.members.others()] == ["a"]
    clock.wait(2.0)
    assert second.members.others() == []
    first.close()
    second.close()
