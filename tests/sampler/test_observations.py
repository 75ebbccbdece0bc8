"""Observations: the results of each point in the record."""

import math
from dataclasses import replace

import pytest

from autotune.measure.score import EFFECTIVE_UTILIZATION, THROUGHPUT, UTILIZATION
from autotune.records import Ending, Validity, Values
from autotune.sampler.observations import (
    TYPICAL_CV,
    Observations,
    between_trial_variance,
    expected_speed_sd,
    expected_trial_sd,
    of_space,
)
from autotune.space.knob import Carried
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


def test_the_reference_never_moves(make_trial: MakeTrial) -> None:
    """Later trials, also a first trial that failed or lies outside the space now, never change what is counted in."""
    records = [make_trial(BASELINE, None), make_trial({"gone": 1}, 10.0), make_trial(BASELINE, 20.0)]
    before = Observations(SPACE, EFFECTIVE_UTILIZATION, records)[point_name(BASELINE)]
    records += [make_trial(BASELINE, 90.0), make_trial(FAST, 5.0)]
    after = Observations(SPACE, EFFECTIVE_UTILIZATION, records)[point_name(BASELINE)]
    assert before.scores == pytest.approx([math.log(2)])
    assert after.scores[:1] == before.scores


@pytest.mark.parametrize(
    "values",
    [{"batch": 32, "xla": False}, {"batch": 8}, {"batch": 8, "xla": False, "cache": "memory"}, {"batch": 8, "xla": 0}],
)
def test_points_outside_the_space_are_left_out(make_trial: MakeTrial, values: dict[str, int]) -> None:
    """A choice, or a knob, that is no longer searched leaves no level behind; False is not 0."""
    assert set(Observations(SPACE, EFFECTIVE_UTILIZATION, [make_trial(BASELINE, 50.0), make_trial(values, 100.0)])) == {
        point_name(BASELINE)
    }


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
    observations = Observations(SPACE, EFFECTIVE_UTILIZATION, records, inert={"xla"})
    assert set(observations) == {point_name(BASELINE), point_name(FAST)}
    assert len(observations[point_name(FAST)].scores) == 2
    assert observations[point_name(FAST)].values == FAST


def test_a_point_that_fails_now_and_then_keeps_its_numbers(make_trial: MakeTrial) -> None:
    """One crash does not wipe out what other trials of the point have shown."""
    records = [make_trial(BASELINE, 50.0), make_trial(FAST, 100.0), make_trial(FAST, None)]
    found = Observations(SPACE, EFFECTIVE_UTILIZATION, records)[point_name(FAST)]
    assert len(found.scores) == 1
    assert found.endings == (Ending.CRASHED,)


def test_the_spread_comes_from_repeats_alone(make_trial: MakeTrial) -> None:
    """Differences between points are no noise; those between trials of one point are."""
    unlike = Observations(SPACE, THROUGHPUT, [make_trial(BASELINE, 50.0), make_trial(FAST, 500.0)])
    assert between_trial_variance(unlike) == (0.0, 0.0)
    assert expected_trial_sd(unlike) == pytest.approx(TYPICAL_CV)

    repeated = Observations(SPACE, THROUGHPUT, [make_trial(BASELINE, 50.0 * math.exp(x)) for x in (0.0, 0.2, 0.4)])
    variance, df = between_trial_variance(repeated)
    assert variance == pytest.approx(0.04)
    assert df == 2.0


def test_speed_has_a_spread_of_its_own(make_trial: MakeTrial) -> None:
    """The spread of speed may be far more or far less than the score's, if it is not in the score."""
    trials = [on_gpu(make_trial(BASELINE, 50.0 * math.exp(0.3 * (place % 2))), 0.5) for place in range(40)]
    observations = Observations(SPACE, UTILIZATION, trials)
    assert expected_trial_sd(observations) < 0.03
    assert expected_speed_sd(observations) == pytest.approx(0.15, abs=0.02)


def test_many_repeats_outweigh_experience(make_trial: MakeTrial) -> None:
    """A quiet machine is believed to be quiet, but only after some repeats."""
    two = [make_trial(BASELINE, 50.0), make_trial(BASELINE, 50.5)]
    many = [make_trial(BASELINE, 50.0 + i % 2 / 2) for i in range(40)]
    after_two, after_many = (expected_trial_sd(Observations(SPACE, THROUGHPUT, trials)) for trials in (two, many))
    assert 0.05 < after_two < TYPICAL_CV
    assert after_many < 0.03


def test_memory_is_the_most_that_any_run_took(make_trial: MakeTrial) -> None:
    """Of several trials the one that took most memory counts; a trial that could not be read does not."""
    trials = [make_trial(FAST, 100.0), make_trial(FAST, 100.0), make_trial(FAST, 100.0)]
    sizes = [(5, None), (7, 3), (None, 2)]
    records = [
        replace(trial, measurement=replace(trial.measurement, peak_memory_bytes=host, gpu_memory_bytes=gpu))
        for trial, (host, gpu) in zip(trials, sizes, strict=True)
        if trial.measurement
    ]
    found = Observations(SPACE, THROUGHPUT, records)[point_name(FAST)]
    assert (found.host_memory_bytes, found.gpu_memory_bytes) == (7, 3)


def test_a_run_with_too_few_steps_tells_roughly(make_trial: MakeTrial) -> None:
    """It is no score, and no failure either: what it showed is kept apart."""
    short = make_trial(FAST, 10.0, validity=Validity.NOT_STEADY)
    found = Observations(SPACE, THROUGHPUT, [make_trial(BASELINE, 50.0), short])[point_name(FAST)]
    assert (found.scores, found.endings, found.trials) == ((), (), 1)
    assert found.rough_scores == pytest.approx([math.log(10 / 50)])


def test_by_utilization_the_busier_gpu_is_the_better_point(make_trial: MakeTrial) -> None:
    """The busier point is better only if it is no slower: speed beyond the baseline's counts for nothing."""
    trials = [on_gpu(make_trial(BASELINE, 50.0), 0.3), on_gpu(make_trial(FAST, 51.0), 0.6)]
    observations = Observations(SPACE, UTILIZATION, trials)
    assert observations[point_name(BASELINE)].mean == 0.0
    assert observations[point_name(FAST)].mean == pytest.approx(math.log(2))


def test_busy_for_being_slow_is_worse_than_today(make_trial: MakeTrial) -> None:
    """The slower, the worse, however busy; and the spread of its trials stays."""
    baseline = on_gpu(make_trial(BASELINE, 50.0), 0.3)
    slow = [on_gpu(make_trial(FAST, 40.0), busy) for busy in (0.88, 0.92)]
    slower = [on_gpu(make_trial({"batch": 16, "xla": True}, 20.0), 0.99)]
    observations = Observations(SPACE, UTILIZATION, [baseline, *slow, *slower])
    found = observations[point_name(FAST)]
    assert (
        observations[point_name({"batch": 16, "xla": True})].mean < found.mean < observations[point_name(BASELINE)].mean
    )
    assert found.scores[1] - found.scores[0] == pytest.approx(math.log(0.92 / 0.88))


def test_what_today_shows_later_moves_the_limit(make_trial: MakeTrial) -> None:
    """A first trial of today's config that was slow by accident does not let slower points pass for good."""
    observations = Observations(
        SPACE, UTILIZATION, [on_gpu(make_trial(BASELINE, 30.0), 0.3), on_gpu(make_trial(FAST, 40.0), 0.6)]
    )
    assert observations[point_name(FAST)].mean > observations[point_name(BASELINE)].mean
    for _ in range(3):
        observations.add(on_gpu(make_trial(BASELINE, 50.0), 0.3))
    assert observations[point_name(FAST)].mean < observations[point_name(BASELINE)].mean


def test_without_a_utilization_a_run_is_no_number_and_not_zero(make_trial: MakeTrial) -> None:
    """It happens that a driver says nothing for a while: that run tells nothing of its point."""
    trials = [on_gpu(make_trial(BASELINE, 50.0), 0.3), on_gpu(make_trial(FAST, 50.0), 0.6), make_trial(FAST, 90.0)]
    found = Observations(SPACE, UTILIZATION, trials)[point_name(FAST)]
    assert found.scores == pytest.approx([math.log(2)])
    assert found.endings == ()


def test_by_utilization_a_point_that_could_not_be_read_is_tried_once_more(make_trial: MakeTrial) -> None:
    """The driver said nothing for a while: that is no failure of the point. A second time it counts as one."""
    baseline = on_gpu(make_trial(BASELINE, 50.0), 0.3)
    assert point_name(FAST) not in Observations(SPACE, UTILIZATION, [baseline, make_trial(FAST, 90.0)])
    twice = Observations(SPACE, UTILIZATION, [baseline, make_trial(FAST, 90.0), make_trial(FAST, 90.0)])[
        point_name(FAST)
    ]
    assert (twice.scores, twice.endings) == ((), (Ending.STOPPED,))
    read = Observations(SPACE, UTILIZATION, [baseline, make_trial(FAST, 90.0), on_gpu(make_trial(FAST, 90.0), 0.6)])
    assert (len(read[point_name(FAST)].scores), read[point_name(FAST)].endings) == (1, ())


def test_by_utilization_a_short_run_tells_only_that_it_was_slow(make_trial: MakeTrial) -> None:
    """Of few steps the speed is known and the utilization is not; fast ones tell nothing."""
    baseline = on_gpu(make_trial(BASELINE, 50.0), 0.3)
    for speed, told in ((10.0, 1), (90.0, 0)):
        short = make_trial(FAST, speed, validity=Validity.NOT_STEADY)
        found = Observations(SPACE, UTILIZATION, [baseline, short])[point_name(FAST)]
        assert len(found.rough_scores) == told
        assert all(score < 0.0 for score in found.rough_scores)


def test_points_whose_other_keys_held_something_else_are_left_out(make_trial: MakeTrial) -> None:
    """An accumulation that was edited since makes the same batch another point, also where the knob is fixed by now."""
    spaces = [
        Space(knobs=(knob("batch", 8, 4, carries=(Carried(path="accum", values=(2 * steps, steps)),)),))
        for steps in (1, 2)
    ]
    values: Values = {"batch": 4}
    trials = [make_trial(values, 50.0, point=space.name(values)) for space in spaces]
    assert of_space(trials, spaces[1]) == trials[1:]
