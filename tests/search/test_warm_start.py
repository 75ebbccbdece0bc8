"""Warm starts: whole searches in virtual time that begin with what another machine found."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.events import Remark, TrialEnded
from autotune.records import Gpu, Machine, Purpose
from autotune.search.problem import Problem, open_problem
from autotune.search.warm_start import keep_profile, profile_of, warm_start
from autotune.study.profiles import INDEX, ProfileIndex, ProfilePoint
from autotune.study.record import StudyRecord
from scripts.bench.simulated_runner import Training
from tests.runs import named, observation
from tests.search.simulated import Search, Searched, plain, searches_in

GIB = 1 << 30
OTHER = Machine(
    cpu_cores=8, cpu_model="other", memory_bytes=64 * GIB, gpus=(Gpu(name="B", uuid="GPU-1", memory_bytes=24 * GIB),)
)


def _problem(machine: Machine | None = None) -> Problem:
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None, machine=machine)
    problem.state.create()
    return problem


def _tried(searched: Searched) -> list[dict[str, object]]:
    names = dict.fromkeys(trial.point for trial in searched.trials if trial.purpose is not Purpose.BASELINE)
    first = {trial.point: dict(trial.values) for trial in reversed(searched.trials)}
    return [first[name] for name in names]


def _remarks(searched: Searched) -> str:
    return "\n".join(event.text for event in searched.events if isinstance(event, Remark))


def _leave_profile_of(searched: Searched, machine: Machine) -> None:
    """Leave what a search found as if it had been made on another machine."""
    problem = _problem(machine)
    records = [event.trial for event in searched.events if isinstance(event, TrialEnded)]
    model = searched.tuner.state.model
    profile = profile_of(problem, records, model.better(), model.sd, "2026-01-01T00:00:00+00:00")
    ProfileIndex(problem.storage, problem.state.studies).keep(profile)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Search, Searched]]:
    """Search here, and what a search on another machine has found and left in the index."""
    with searches_in(tmp_path_factory.mktemp("elsewhere")) as search:
        found = search(plain, budget_s=300, seed=1)
        _leave_profile_of(found, OTHER)
        yield search, found


def test_begins_with_the_best_point_of_another_machine(elsewhere: tuple[Search, Searched]) -> None:
    """It is the first point tried after today's; screens say where it came from, and in the end when it was tried."""
    search, before = elsewhere
    start = warm_start(_problem())
    assert start.sentence.startswith("The search starts with ")
    assert "a study of this training on B, 8 cores" in start.sentence
    after = search(plain, budget_s=150, fresh=True, warm_start=start)
    assert _tried(after)[0] == before.answer.best.values
    assert "The answer, point 1 of those tried, came from a study of this training on B" in _remarks(after)


def test_other_numbers_are_not_mixed_in(elsewhere: tuple[Search, Searched]) -> None:
    """A point that was good elsewhere and is slow here is no answer: it counts by its own trial."""
    search, _ = elsewhere

    def other_way_round(config: dict[str, dict[str, int]]) -> Training:
        training = plain(config)
        return replace(training, step_s=training.step_s * config["data"]["batch_size"] / 4)

    searched = search(other_way_round, budget_s=100, fresh=True, warm_start=warm_start(_problem()))
    assert searched.answer.best.values["data.batch_size"] == 8


def test_after_one_disappointment_the_others_of_that_study_are_left_out(search: Search) -> None:
    """Its optimum lies elsewhere: a search that is misled loses one trial."""
    search(plain, budget_s=20)
    problem = _problem()
    values = [{**problem.space.baseline, **changes} for changes in ({"data.batch_size": 32}, {"data.num_workers": 2})]
    other = _problem(OTHER)
    points = tuple(ProfilePoint(values=one, gain=0.5, sd=0.1) for one in values)
    ProfileIndex(other.storage, other.state.studies).keep(replace(profile_of(other, [], [], 0.1, ""), points=points))
    start = warm_start(problem)
    assert len(start.points) == 2
    observations = named(observation(problem.space, 0.0), observation(problem.space, -0.5, batch_size=32))
    assert not list(start.among(iter(()), problem.space, observations, lambda _values: False))
    observations = named(observation(problem.space, 0.0), observation(problem.space, 0.5, batch_size=32))
    assert list(start.among(iter(()), problem.space, observations, lambda _values: False)) == [values[1]]


def test_a_study_leaves_its_profile_in_the_record_and_beside_it(elsewhere: tuple[Search, Searched]) -> None:
    """With the values that were better, and no path, host or command."""
    _, searched = elsewhere
    problem = _problem()
    study = StudyRecord(problem.study, problem.storage)
    model = searched.tuner.state.model
    keep_profile(problem, study, model.better(), model.sd, "2026-01-01T00:00:00+00:00")
    study.close()
    text = (problem.state.studies / INDEX).read_text()
    assert '"data.batch_size": 32' in text
    assert "train.py" not in text
    assert str(Path.cwd()) not in text
    assert '"profile"' in problem.place.journal.read_text()
