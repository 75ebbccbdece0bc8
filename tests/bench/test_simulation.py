"""Scenarios are as they say, what fails does so by its name, and the model agrees with a trainer that was measured."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.measure.window import WindowGoal
from autotune.records import Purpose, Scalar, Validity, Values
from autotune.search.gpus import complete
from autotune.search.problem import Problem, open_problem
from autotune.trial.execution import Execution, TrialSpec, execute
from autotune.trial.stop_rule import StopLimits
from scripts.bench.simulated_runner import Drift
from scripts.bench.simulation.calibration import (
    FITTED,
    REFERENCE,
    REFERENCE_HARDWARE,
    fit,
    read_grid,
)
from scripts.bench.simulation.scenarios import PATHS, Scenario, scenario


def test_the_parameters_in_use_are_the_fitted_ones() -> None:
    """Fitting again gives what stands in the code."""
    fitted = fit(read_grid(), REFERENCE_HARDWARE)
    assert {name: getattr(fitted, name) for name in FITTED} == pytest.approx(
        {name: getattr(REFERENCE, name) for name in FITTED}, rel=0.01
    )


ONE_OF_EACH = range(8)

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


def executed(one: Scenario, problem: Problem, values: Values, *, fresh_processes: bool = True) -> Execution:
    """One trial of a point, measured as a search does."""
    clock = VirtualClock()
    runner = one.runner(clock, seed=0, fresh_processes=fresh_processes)
    return execute(
        problem.trainer,
        complete(
            problem,
            TrialSpec(values=values, purpose=Purpose.EXPLORE),
            name="run",
            limits=StopLimits(
                goal=WindowGoal(min_s=2.0, min_steps=10, target_s=2.0),
                settles=problem.space.settles(values),
                deadline_s=clock.now_s() + 1e6,
            ),
        ),
        runner=runner,
        instruments=one.instruments(runner),
        clock=clock,
    )


def at(one: Scenario, **kinds: Scalar) -> Values:
    """Today's point with some knobs turned, named by their kinds."""
    return {PATHS[kind]: kinds.get(kind, one.training.baseline[kind]) for kind in one.training.searched}


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_a_search_measures_the_truth(opened: Open, seed: int) -> None:
    """The windows of the baseline and of the best point show the truth, within the error of a short window."""
    one = quiet(scenario(seed))
    problem = opened(one)
    for values in (problem.space.baseline, one.best()[0]):
        done = executed(one, problem, values)
        assert done.validity is Validity.GOOD
        assert done.measurement.samples_per_s == pytest.approx(one.speed(values), rel=0.1)
        done.folder.delete()
