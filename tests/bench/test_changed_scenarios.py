"""Scenarios with one assumption of the simulator changed."""

import math
from pathlib import Path

import numpy as np
import pytest

from autotune.search.problem import open_problem
from scripts.bench.peers.changed_assumptions import benchmark_assumptions
from scripts.bench.simulation.changed_scenarios import Change, ChangedScenario
from scripts.bench.simulation.scenarios import scenario


@pytest.fixture(params=Change)
def changed(request: pytest.FixtureRequest) -> ChangedScenario:
    """A scenario with each change."""
    return ChangedScenario(scenario=scenario(3), change=request.param)


def test_no_point_is_faster_than_the_best(changed: ChangedScenario) -> None:
    """Of a hundred points drawn from the grid."""
    grid, rng = changed.scenario.grid, np.random.default_rng(0)
    values, best = changed.best()
    assert changed.speed(values) == pytest.approx(best)
    assert all(changed.speed(grid.at(row)) <= best * (1 + 1e-9) for row in rng.integers(0, len(grid.speeds), 100))


def test_interactions_leave_main_effects_as_they_are() -> None:
    """The geometric mean over all points that run is the same, single points differ."""
    one = ChangedScenario(scenario=scenario(3), change=Change.INTERACTIONS)
    grid = one.scenario.grid
    rows = np.flatnonzero(grid.speeds)
    if len(rows) > 3000:
        rows = np.random.default_rng(0).choice(rows, 3000, replace=False)
    factors = [math.log(one.speed(grid.at(row)) / grid.speeds[row]) for row in rows]
    assert np.mean(factors) == pytest.approx(0.0, abs=0.03)
    assert np.std(factors) > 0.01


def test_a_rugged_landscape_lies_on_top_of_the_pipeline() -> None:
    """It is the same each time, what cannot run still cannot, and the rest differs by some percent."""
    usual = scenario(3).grid.speeds
    rugged, again = (ChangedScenario(scenario=scenario(3), change=Change.RUGGED).grid.speeds for _ in range(2))
    assert list(rugged) == list(again)
    assert list(rugged > 0) == list(usual > 0)
    logs = np.log(rugged[usual > 0] / usual[usual > 0])
    assert np.mean(logs) == pytest.approx(0.0, abs=0.03)
    assert 0.03 < np.std(logs) < 0.06


@pytest.mark.parametrize("change", [Change.WRONG_ADVICE, Change.OUTLIERS, Change.SLOW_PHASES])
def test_other_changes_leave_the_truth_as_it_is(change: Change) -> None:
    """All points have the same speed."""
    one = scenario(3)
    assert list(ChangedScenario(scenario=one, change=change).grid.speeds) == list(one.grid.speeds)


def test_wrong_advice_is_the_slowest_single_change(tmp_path: Path) -> None:
    """Knobs that have advice get another one; those without have none."""
    one = ChangedScenario(scenario=scenario(3), change=Change.WRONG_ADVICE)
    config = tmp_path / "config.yaml"
    config.write_text(one.config_text)
    space = open_problem(config, command=None, state_dir=tmp_path / "state", machine=one.machine).space
    for knob, misled in zip(space.knobs, one.advised(space).knobs, strict=True):
        for value in misled.heuristic_values:
            others = [one.speed({knob.path: choice}) for choice in knob.choices if choice != knob.baseline]
            assert one.speed({knob.path: value}) == min(speed for speed in others if speed > 0)
        assert bool(knob.heuristic_values) or not misled.heuristic_values


@pytest.mark.parametrize("change", [Change.OUTLIERS, Change.INTERACTIONS, Change.RUGGED])
def test_trials_are_as_slow_as_the_change_says(change: Change) -> None:
    """One in ten at 0.6 of the speed; or each as the truth about its point."""
    one = ChangedScenario(scenario=scenario(3), change=change)
    train = one.trainer(seed=0, fresh_processes=False)
    usual = one.scenario.trainer(fresh_processes=False)(one.config_text).step_s
    ratios = np.array([usual / train(one.config_text).step_s for _ in range(200)])
    if change is Change.OUTLIERS:
        assert set(np.round(ratios, 3)) == {0.6, 1.0}
        assert 0.04 < np.mean(ratios < 0.9) < 0.18
    else:
        assert ratios == pytest.approx(one.speed({}) / one.scenario.speed({}))


def test_the_benchmark_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call makes no search again, and prints the same."""
    first = benchmark_assumptions(seeds=range(2, 3), budgets_s=(30, 60), jobs=1, out=tmp_path)
    assert first.count("\n") > 10
    assert all(change.value in first for change in Change)
    capsys.readouterr()
    assert benchmark_assumptions(seeds=range(2, 3), budgets_s=(30, 60), jobs=1, out=tmp_path) == first
    assert capsys.readouterr().err == ""
