"""The wall, and the expected duration of trials."""

from dataclasses import replace

import pytest

from autotune.clock import VirtualClock
from autotune.records import Values
from autotune.search.schedule import STOPPING_S, Budget, expected_trial_s, pair_s
from autotune.space.space import point_name
from tests.runs import MakeTrial

TODAY: Values = {"n": 1}
OTHER: Values = {"n": 2}


def test_the_budget_counts_from_the_start_of_the_process() -> None:
    """Imports and checks are paid for too, and the end leaves time to stop and report."""
    clock = VirtualClock(100.0)
    budget = Budget(clock, started_s=98.0, budget_s=60.0)
    assert budget.elapsed_s() == 2.0
    assert budget.wall_s == 98.0 + 60.0 - STOPPING_S
    clock.wait(budget.left_s() + 5.0)
    assert budget.left_s() == -5.0


def test_a_trial_is_expected_to_take_as_long_as_its_point_did(make_trial: MakeTrial) -> None:
    """A point that was measured tells for itself, a new one is like all others; a median, so one outlier is none."""
    trials = [make_trial(TODAY, 50.0, duration_s=d) for d in (10.0, 12.0, 90.0)]
    trials += [make_trial(OTHER, 50.0, duration_s=30.0)]
    assert expected_trial_s(trials, point_name(TODAY)) == 12.0
    assert expected_trial_s(trials, point_name(OTHER)) == 30.0
    assert expected_trial_s(trials) == expected_trial_s(trials, "never measured") == 21.0
    assert pair_s(trials, point_name(TODAY), point_name(OTHER)) == 42.0


def test_failures_tell_only_where_there_is_nothing_better(make_trial: MakeTrial) -> None:
    """A crash after a second says little about how long a good trial takes."""
    crashes = [make_trial(OTHER, None, duration_s=1.0)] * 5
    assert expected_trial_s([*crashes, make_trial(TODAY, 50.0, duration_s=20.0)]) == 20.0
    assert expected_trial_s(crashes) == 1.0
    assert expected_trial_s([]) == pytest.approx(10.0)


def test_the_slow_start_of_the_first_trial_is_not_expected_again(make_trial: MakeTrial) -> None:
    """The first trial of a search imports and reads for the first time; the next one of the same point will not."""
    slow, quick = make_trial(TODAY, 50.0, duration_s=12.0), make_trial(OTHER, 50.0, duration_s=5.0)
    assert slow.measurement
    assert quick.measurement
    slow = replace(slow, measurement=replace(slow.measurement, first_step_s=8.0))
    quick = replace(quick, measurement=replace(quick.measurement, first_step_s=1.0))
    assert expected_trial_s([slow], point_name(TODAY)) == 12.0
    assert expected_trial_s([slow, quick], point_name(TODAY)) == 5.0
    assert expected_trial_s([quick, slow], point_name(TODAY)) == 12.0
