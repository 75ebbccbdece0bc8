"""Observations: the results of each point in the record."""

import math

import pytest

from autotune.measure.score import EFFECTIVE_UTILIZATION, THROUGHPUT, UTILIZATION
from autotune.measure.statistics import TYPICAL_CV
from autotune.records import Ending, Validity
from autotune.sampler.observations import Observations, expected_trial_sd
from autotune.space.space import Space, point_name
from tests.runs import MakeTrial, knob, on_gpu

SPACE = Space(knobs=(knob("batch", 8, 16), knob("xla", False, True)))
BASELINE = SPACE.baseline
FAST = {"batch": 16, "xla": False}


def test_levels_count_in_the_first_good_run(make_trial: MakeTrial) -> None:
    """The first comparable trial is 1.00; a point twice as fast is ln 2 above it."""
    observations = Observations(SPACE, EFFECTIVE_UTILIZATION, [make_trial(BASELINE, 50.0), make_trial(FAST, 100.0)])
    assert observations[point_name(BASELINE)].mean == 0.0
    assert observations[point_name(FAST)].mean == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "values",
    [{"batch": 32, "xla": False}, {"batch": 8}, {"batch": 8, "xla": False, "cache": "memory"}, {"batch": 8, "xla": 0}],
)
def test_points_outside_the_space_are_left_out(make_trial: MakeTrial, values: dict[str, int]) -> None:
    """A choice, or a knob, that is no longer searched leaves no level behind; False is not 0."""
    trials = [make_trial(BASELINE, 50.0), make_trial(values, 100.0)]
    assert set(Observations(SPACE, EFFECTIVE_UTILIZATION, trials)) == {point_name(BASELINE)}


def test_failures_are_known_and_are_no_numbers(make_trial: MakeTrial) -> None:
    """A point that only failed has its endings and no level; runs on a cold cache do not count either."""
    cold = make_trial(FAST, 500.0, validity=Validity.COLD)
    observations = Observations(
        SPACE, EFFECTIVE_UTILIZATION, [make_trial(BASELINE, 50.0), make_trial(FAST, None), cold]
    )
    assert observations[point_name(FAST)].scores == ()
    assert observations[point_name(FAST)].mean == -math.inf
    assert observations[point_name(FAST)].endings == (Ending.CRASHED, Ending.STOPPED)


@pytest.mark.parametrize("ending", [Ending.INTERRUPTED, Ending.KILLED_BY_BUDGET, Ending.GPU_LOST])
def test_a_run_that_others_ended_may_be_made_again(make_trial: MakeTrial, ending: Ending) -> None:
    """Once: of the second it is known that this point ends so."""
    ended = make_trial(FAST, None, ending=ending)
    assert point_name(FAST) not in Observations(SPACE, EFFECTIVE_UTILIZATION, [make_trial(BASELINE, 50.0), ended])
    twice = Observations(SPACE, EFFECTIVE_UTILIZATION, [make_trial(BASELINE, 50.0), ended, ended])
    assert twice[point_name(FAST)].endings == (ending,)


def test_runs_that_differ_in_dead_knobs_alone_are_runs_of_one_point(make_trial: MakeTrial) -> None:
    """The one that leaves them as they are; so nothing is measured twice, and nothing is changed for nothing."""
    records = [make_trial(BASELINE, 50.0), make_trial({**FAST, "xla": True}, 100.0), make_trial(FAST, 100.0)]
    observations = Observations(SPACE, EFFECTIVE_UTILIZATION, records, unused={"xla"})
    assert set(observations) == {point_name(BASELINE), point_name(FAST)}
    assert len(observations[point_name(FAST)].scores) == 2
    assert observations[point_name(FAST)].values == FAST


def test_the_spread_comes_from_repeats_alone(make_trial: MakeTrial) -> None:
    """Differences between points are no noise; those between trials of one point are."""
    unlike = Observations(SPACE, THROUGHPUT, [make_trial(BASELINE, 50.0), make_trial(FAST, 500.0)])
    assert expected_trial_sd(unlike) == pytest.approx(TYPICAL_CV)

    repeated = Observations(SPACE, THROUGHPUT, [make_trial(BASELINE, 50.0 * math.exp(x)) for x in (0.0, 0.2, 0.4)])
    assert expected_trial_sd(repeated) == pytest.approx(math.sqrt((4.0 * TYPICAL_CV**2 + 2.0 * 0.04) / 6.0))


def test_by_utilization_the_busier_gpu_is_the_better_point(make_trial: MakeTrial) -> None:
    """The busier point is better only if it is no slower: speed beyond the baseline's counts for nothing."""
    trials = [on_gpu(make_trial(BASELINE, 50.0), 0.3), on_gpu(make_trial(FAST, 51.0), 0.6)]
    observations = Observations(SPACE, UTILIZATION, trials)
    assert observations[point_name(BASELINE)].mean == 0.0
    assert observations[point_name(FAST)].mean == pytest.approx(math.log(2))
