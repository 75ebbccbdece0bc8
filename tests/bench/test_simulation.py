"""Scenarios are as they say, what fails does so by its name, and the model agrees with a trainer that was measured."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.measure.window import WindowGoal
from autotune.records import Scalar, Stop, TraineeEvent, TrialPlan, Validity, Values
from autotune.search.gpus import request_for
from autotune.search.problem import Problem, open_problem
from autotune.space.space import Space
from autotune.testing.simulated_runner import Drift
from autotune.trial.execution import Execution, TrialTools, execute
from autotune.trial.plan import plan_trial
from autotune.trial.stop_rule import TrialPolicy
from scripts.bench.simulation.calibration import (
    FITTED,
    REFERENCE,
    REFERENCE_HARDWARE,
    fit,
    read_grid,
)
from scripts.bench.simulation.scenarios import PATHS, Scenario, null_scenario, scenario


def test_the_parameters_in_use_are_the_fitted_ones() -> None:
    """Fitting again gives what stands in the code."""
    fitted = fit(read_grid(), REFERENCE_HARDWARE)
    assert {name: getattr(fitted, name) for name in FITTED} == pytest.approx(
        {name: getattr(REFERENCE, name) for name in FITTED}, rel=0.01
    )


ONE_OF_EACH = range(16)

Open = Callable[[Scenario], Problem]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a scenario as a search would."""
    monkeypatch.chdir(tmp_path)

    def open_scenario(one: Scenario) -> Problem:
        Path("config.yaml").write_text(one.config_text)
        problem = open_problem(Path("config.yaml"), command=None, state_dir=tmp_path, machine=one.machine)
        problem.state.create()
        return problem

    return open_scenario


def quiet(one: Scenario) -> Scenario:
    """The scenario without noise, drift and accidents."""
    habits = replace(
        one.training.habits,
        noise=0.0,
        step_noise=0.0,
        long_steps=0.0,
        work_spread=0.0,
        warm_up=0.0,
        crash_chance=0.0,
        hang_chance=0.0,
    )
    return replace(one, training=replace(one.training, habits=habits, drift=Drift()))


def random_points(space: Space, count: int, seed: int = 0) -> list[Values]:
    """Some points of a space."""
    rng = random.Random(seed)
    return [{knob.path: rng.choice(knob.choices) for knob in space.knobs} for _ in range(count)]


def long_run(one: Scenario, plan: TrialPlan) -> float:
    """Samples per second over the whole second epoch of a run."""
    ends_s: list[float] = []
    samples = 0.0

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        nonlocal samples
        for event in events:
            if event.kind == "step" and len(ends_s) == 1:
                samples += event.samples or 0.0
            if event.kind == "epoch_end":
                ends_s.append(event.t_s)
        return Stop.ENOUGH if len(ends_s) >= 2 else None

    one.runner(VirtualClock(), seed=0, fresh_processes=True).run(plan, watch, math.inf)
    return samples / (ends_s[1] - ends_s[0])


def executed(one: Scenario, problem: Problem, values: Values, *, fresh_processes: bool = True) -> Execution:
    """One trial of a point, measured as a search does."""
    clock = VirtualClock()
    runner = one.runner(clock, seed=0, fresh_processes=fresh_processes)
    return execute(
        problem.trainer,
        request_for(problem, values, name="run"),
        TrialPolicy(
            goal=WindowGoal(min_s=2.0, min_steps=10, target_s=2.0),
            settles=problem.space.settles(values),
            deadline_s=clock.now_s() + 1e6,
        ),
        TrialTools(runner=runner, instruments=one.instruments(runner), clock=clock),
    )


def at(one: Scenario, **kinds: Scalar) -> Values:
    """Today's point with some knobs turned, named by their kinds."""
    return {PATHS[kind]: kinds.get(kind, one.training.baseline[kind]) for kind in one.training.searched}


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_the_truth_is_the_long_run_of_a_run(opened: Open, seed: int) -> None:
    """Samples per second of an epoch with warm caches are what `speed` says, for points of all kinds."""
    one = quiet(scenario(seed))
    problem = opened(one)
    points = [problem.space.baseline, one.best()[0], *random_points(problem.space, 8, seed)]
    running = [values for values in points if one.speed(values) > 0.0]
    assert len(running) >= 4
    for number, values in enumerate(running):
        shown = long_run(one, plan_trial(problem.trainer, problem.space.keys(values), trial=f"run-{number}"))
        assert shown == pytest.approx(one.speed(values), rel=0.01)


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_a_search_measures_the_truth(opened: Open, seed: int) -> None:
    """The windows of the baseline and of the best point show the truth, within the error of a short window."""
    one = quiet(scenario(seed))
    problem = opened(one)
    for values in (problem.space.baseline, one.best()[0]):
        done = executed(one, problem, values)
        assert done.validity is Validity.GOOD
        assert done.measurement is not None
        assert done.measurement.samples_per_s == pytest.approx(one.speed(values), rel=0.1)
        done.folder.delete()


def test_where_knobs_do_nothing_all_points_are_one(opened: Open) -> None:
    """The truth, the trials and the best are today's, whatever is turned."""
    one = quiet(null_scenario(4))
    problem = opened(one)
    baseline = one.speed({})
    shown: Mapping[int, float] = {
        number: long_run(one, plan_trial(problem.trainer, problem.space.keys(values), trial=f"run-{number}"))
        for number, values in enumerate(random_points(problem.space, 5))
    }
    assert list(shown.values()) == pytest.approx([baseline] * 5, rel=0.01)
    assert one.best() == (problem.space.baseline, baseline)
    assert {one.speed(values) for values in random_points(problem.space, 50)} == {baseline}
