"""The wall, and how long runs are expected to take."""

from dataclasses import replace

import pytest

from autotune.clock import VirtualClock
from autotune.records import Values
from autotune.search.budget import STOPPING_S, Budget, expected_run_s, pair_s
from autotune.space.space import point_name
from tests.runs import MakeRun

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


def test_a_run_is_expected_to_take_as_long_as_its_point_did(make_run: MakeRun) -> None:
    """A point that was measured tells for itself, a new one is like all others; a median, so one outlier is none."""
    runs = [make_run(TODAY, 50.0, duration_s=d) for d in (10.0, 12.0, 90.0)]
    runs += [make_run(OTHER, 50.0, duration_s=30.0)]
    assert expected_run_s(runs, point_name(TODAY)) == 12.0
    assert expected_run_s(runs, point_name(OTHER)) == 30.0
    assert expected_run_s(runs) == expected_run_s(runs, "never measured") == 21.0
    assert pair_s(runs, point_name(TODAY), point_name(OTHER)) == 42.0


def test_failures_tell_only_where_there_is_nothing_better(make_run: MakeRun) -> None:
    """A crash after a second says little about how long a good run takes."""
    crashes = [make_run(OTHER, None, duration_s=1.0)] * 5
    assert expected_run_s([*crashes, make_run(TODAY, 50.0, duration_s=20.0)]) == 20.0
    assert expected_run_s(crashes) == 1.0
    assert expected_run_s([]) == pytest.approx(10.0)


def test_the_slow_start_of_the_first_run_is_not_expected_again(make_run: MakeRun) -> None:
    """The first run of a search imports and reads for the first time; the next one of the same point will not."""
    slow, quick = make_run(TODAY, 50.0, duration_s=12.0), make_run(OTHER, 50.0, duration_s=5.0)
    assert slow.measurement
    assert quick.measurement
    slow = replace(slow, measurement=replace(slow.measurement, first_step_s=8.0))
    quick = replace(quick, measurement=replace(quick.measurement, first_step_s=1.0))
    assert expected_run_s([slow], point_name(TODAY)) == 12.0
    assert expected_run_s([slow, quick], point_name(TODAY)) == 5.0
    assert expected_run_s([quick, slow], point_name(TODAY)) == 12.0
