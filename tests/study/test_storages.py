"""Contract of every `Storage`, which journals, SQLite and PostgreSQL keep."""

import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.clock import VirtualClock
from autotune.errors import StudyError
from autotune.records import Purpose
from autotune.study.claims import LEASE_S, Owner
from autotune.study.entry import line_object, trial_of_line
from autotune.study.record import StudyRecord
from autotune.study.storage.storage import Storage
from tests.postgresql import Server
from tests.study.storages import CHOICES, VALUES, at, record

_PAIRS = 5  # of trials, that two workers make at the same time


class StorageContract:
    """Contract of every `Storage`."""

    def opened(self, folder: Path) -> Storage:
        """Return the storage, each time as a process of its own would open it; empty for a new folder."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Nothing is open yet."""
        self._open = ExitStack()

    def teardown_method(self) -> None:
        """Close what a test has opened."""
        self._open.close()

    def study(self, folder: Path, name: str = "s-1", **about: Any) -> StudyRecord:
        """Open a study; of its owner, `about` says what is not usual."""
        owner = Owner(**{"about": {"host": "a"}, "is_gone": lambda _claim: False, "clock": VirtualClock(), **about})
        study = StudyRecord(name, self.opened(folder), owner=owner)
        self._open.callback(study.close)
        return study

    def member(self, folder: Path, name: str = "s-1") -> optuna.Study:
        """Open one of the Optuna studies as any other tool does."""
        connection = self.opened(folder).connect("s-1")
        self._open.callback(connection.close)
        return optuna.load_study(study_name=name, storage=connection.storage)

    def trials(self, folder: Path, name: str = "s-1") -> list[FrozenTrial]:
        """Return the trials of an Optuna study as any other tool sees them."""
        return self.member(folder, name).get_trials()

    def test_a_trial_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """Claimed with its parameters, finished with everything else; another process reads the same."""
        study = self.study(tmp_path)
        claim = study.begin(VALUES, CHOICES, search="a", sampler="tpe")
        (running,) = self.trials(tmp_path)
        assert (running.state, running.params) == (TrialState.RUNNING, VALUES)
        assert running.user_attrs["claim"]["search"] == "a"
        written = study.finish(claim, record(), score=1.25, speeds=(58.0, 62.0))
        (done,) = self.trials(tmp_path)
        assert (done.state, done.value, done.intermediate_values) == (TrialState.COMPLETE, 1.25, {0: 58.0, 1: 62.0})
        assert done.duration is not None
        assert (done.user_attrs["samples_per_s"], done.user_attrs["sampler"]) == (60.0, "tpe")
        assert self.study(tmp_path).records() == study.records() == [written]

    def test_a_point_that_is_measured_again_does_not_count_twice(self, tmp_path: Path) -> None:
        """Optuna's importances and best trial are those of points; to autotune it is a trial as any other."""
        study = self.study(tmp_path)
        again = replace(record(), purpose=Purpose.CONFIRM, pair=1)
        for one in (record(), again):
            study.finish(study.begin(VALUES, CHOICES, sampler="tpe"), one, score=1.25, speeds=(58.0, 62.0))
        first, second = self.trials(tmp_path)
        assert (first.state, second.state) == (TrialState.COMPLETE, TrialState.PRUNED)
        assert (second.value, second.intermediate_values) == (1.25, {0: 58.0, 1: 62.0})
        assert trial_of_line(line_object(second)).state is TrialState.PRUNED
        assert [one.purpose for one in self.study(tmp_path).records()] == [Purpose.EXPLORE, Purpose.CONFIRM]

    def test_a_trial_without_a_score_has_failed(self, tmp_path: Path) -> None:
        """It carries no value, and is read back all the same; one that was given up is no record."""
        study = self.study(tmp_path)
        study.finish(study.begin(VALUES, CHOICES), replace(record(), detail="ValueError: no"))
        study.abandon(study.begin(VALUES, CHOICES))
        assert [(trial.state, trial.value) for trial in self.trials(tmp_path)] == [(TrialState.FAIL, None)] * 2
        assert [one.detail for one in self.study(tmp_path).records()] == ["ValueError: no"]

    def test_the_latest_study_is_found(self, tmp_path: Path) -> None:
        """By a pattern, which must not be taken for more than one of names; none where nothing was written."""
        assert self.opened(tmp_path).latest("s-*") is None
        for name in ("s-1", "s-2", "t-1"):
            study = self.study(tmp_path, name)
            study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
        storage = self.opened(tmp_path)
        assert storage.latest("s-*") == "s-2"
        assert storage.latest("s-1") == "s-1"
        assert storage.latest("s-?-?") is None

    def test_a_study_that_is_set_aside_is_kept(self, tmp_path: Path) -> None:
        """The next one of its name begins anew."""
        storage = self.opened(tmp_path)
        storage.archive("s-1", VirtualClock())  # there is none yet
        study = self.study(tmp_path)
        study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
        self.opened(tmp_path).archive("s-1", VirtualClock())
        again = self.study(tmp_path)
        assert again.records() == []
        again.finish(again.begin(VALUES, CHOICES), replace(record(), detail="anew"), score=1.0)
        assert [one.detail for one in self.study(tmp_path).records()] == ["anew"]

    def test_two_workers_at_once(self, tmp_path: Path) -> None:
        """Each gets trials of its own, and every finished one is there once."""
        workers = [self.study(tmp_path) for _ in range(2)]
        errors: list[BaseException] = []

        def work(study: StudyRecord) -> None:
            try:
                for _ in range(_PAIRS):
                    study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(study,)) for study in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        numbers = [one.number for study in workers for one in study.records()]
        assert sorted(numbers) == list(range(2 * _PAIRS))
        assert len(self.study(tmp_path).records()) == 2 * _PAIRS

    def test_what_nobody_makes_any_more_is_closed(self, tmp_path: Path) -> None:
        """At once if its process is gone, else after a minute without a sign of life; then its late end counts."""
        dead, silent = self.study(tmp_path, about={"host": "dead"}), self.study(tmp_path)
        dead.begin(VALUES, CHOICES)
        claim = silent.begin(VALUES, CHOICES)
        clock = VirtualClock()
        observer = self.study(tmp_path, clock=clock, is_gone=lambda claim: claim.get("host") == "dead")
        assert observer.close_abandoned() == 1
        clock.wait(LEASE_S - 1.0)
        assert observer.close_abandoned() == 0
        clock.wait(1.0)
        assert observer.close_abandoned() == 1
        assert [trial.state for trial in self.trials(tmp_path)] == [TrialState.FAIL] * 2
        assert self.study(tmp_path).records() == []
        written = silent.finish(claim, record(), score=1.5)
        assert [one.number for one in self.study(tmp_path).records()] == [written.number] == [claim.number] == [1]
        assert self.trials(tmp_path)[2].user_attrs["claim"]["late_of"] == 1

    def test_a_sign_of_life_keeps_a_claim(self, tmp_path: Path) -> None:
        """The minute begins anew with each renewal, by the observer's own clock."""
        owner, clock = self.study(tmp_path), VirtualClock()
        owner.begin(VALUES, CHOICES)
        observer = self.study(tmp_path, clock=clock)
        for _ in range(3):
            assert observer.close_abandoned() == 0
            clock.wait(LEASE_S - 1.0)
            owner.renew()
        assert observer.close_abandoned() == 0
        assert [trial.state for trial in self.trials(tmp_path)] == [TrialState.RUNNING]

    def test_trials_in_the_queue_are_nobodys_parameters(self, tmp_path: Path) -> None:
        """What somebody has enqueued with another tool stays there, and the trial that was wanted is made."""
        study = self.study(tmp_path)
        self.member(tmp_path).enqueue_trial({"data.batch_size": 16})
        study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
        assert [trial.state for trial in self.trials(tmp_path)] == [TrialState.WAITING, TrialState.COMPLETE]
        assert self.trials(tmp_path)[1].params == VALUES

    def test_a_trial_that_was_written_twice_is_one(self, tmp_path: Path) -> None:
        """The answer to a write may be lost, and the write be made again."""
        study = self.study(tmp_path)
        study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
        foreign = self.member(tmp_path)
        foreign.add_trial(foreign.get_trials()[0])
        assert len(self.trials(tmp_path)) == 2
        assert len(self.study(tmp_path).records()) == 1

    def test_two_workers_begin_with_lists_of_their_own(self, tmp_path: Path) -> None:
        """Somebody has edited a list in between: the second one goes on beside the first."""
        lists = [CHOICES, {**CHOICES, "data.cache": ("none", "disk")}, {**CHOICES, "data.cache": ("none", "tmpfs")}]
        studies = [self.study(tmp_path) for _ in lists]  # all of them while it is empty
        for study, choices in zip(studies, lists, strict=True):
            study.finish(study.begin({**VALUES, "data.cache": choices["data.cache"][1]}, choices), record(), score=1.0)
        assert len(self.study(tmp_path).records()) == 3
        assert [trial.params["data.cache"] for trial in self.trials(tmp_path, "s-1~3")] == ["tmpfs"]

    def test_a_study_that_is_deleted_meanwhile_is_an_expected_error(self, tmp_path: Path) -> None:
        """From the next trial on, at the latest; signs of life fail without a word, and what was measured is known."""
        study = self.study(tmp_path)
        claim = study.begin(VALUES, CHOICES)
        optuna.delete_study(study_name="s-1", storage=self.member(tmp_path)._storage)
        study.renew()
        _is_refused(lambda: study.finish(claim, record(), score=1.0))  # a journal takes it
        assert _is_refused(lambda: study.begin(VALUES, CHOICES))
        study.close()
        assert len(study.records()) == 1

    def test_a_note_is_kept_with_its_study(self, tmp_path: Path) -> None:
        """The latest of a name counts; where one look tells those of all studies, it does not need their names."""
        first, second = self.study(tmp_path), self.study(tmp_path, "s-2")
        first.note("x", {"a": 1})
        first.note("x", {"a": [2.5, None, "ä"]})
        second.note("y", True)
        assert self.member(tmp_path).user_attrs == {"x": {"a": [2.5, None, "ä"]}}
        assert self.opened(tmp_path).attributes("x") in ([{"a": [2.5, None, "ä"]}], [])
        assert self.opened(tmp_path).attributes("z") == []


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except StudyError:
        return True
    return False


class TestJournal(StorageContract):
    """Folder of journals."""

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at("journal:studies", folder)


class TestSqlite(StorageContract):
    """SQLite's file."""

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at("sqlite:studies.db", folder)


@pytest.mark.core
@pytest.mark.services
class TestPostgresql(StorageContract):
    """Server, with a database for each test."""

    databases = itertools.count()

    @pytest.fixture(autouse=True)
    def database(self, postgresql: Server) -> None:
        """Make an empty database."""
        self.url = postgresql.new_database(f"test_{next(self.databases)}")

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at(self.url, folder)
