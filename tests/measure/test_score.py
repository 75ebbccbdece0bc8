"""Promises of the score and of the verdict, with simulated confirmations."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.score import (
    _OF_A_CLASS_SD,
    LEAST_SCORE_GAIN,
    THROUGHPUT,
    UTILIZATION,
    Judgement,
    confidence_of,
    judge,
    ln_score,
    on_all_machines,
    pairs_needed,
)
from autotune.measure.statistics import pooled_variance, student_t_quantile
from autotune.records import Measurement, Ratio


def measured(samples_per_s, cv=None, gpu_utilization=None, filled_samples_per_s=None):
    """Measurement of that speed, variation, utilization and estimate for filled caches."""
    given = {"gpu_utilization": gpu_utilization, "filled_samples_per_s": filled_samples_per_s}
    steps = {"steps": 80, "step_p50_s": 0.05, "step_p95_s": 0.06, "first_step_s": 6.0, "data_wait_fraction": None}
    return Measurement(window_s=4.0, samples_per_s=samples_per_s, cv=cv, **steps, **given)


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=2, max_size=8), st.floats(0.1, 1e3))
def test_the_unit_of_speed_does_not_matter(speeds, factor):
    """Samples, batches or tokens a second give the same verdict, and the interval holds its ratio."""
    verdicts = [
        judge([(measured(a * k), measured(b * k)) for a, b in speeds], prior_variance=0.01, prior_df=10)
        for k in (1.0, factor)
    ]
    assert verdicts[0].speed.ratio == pytest.approx(verdicts[1].speed.ratio, rel=1e-9)
    assert verdicts[0].smallest_gain == pytest.approx(verdicts[1].smallest_gain, rel=1e-6, abs=1e-9)
    assert all(each.speed.low <= each.speed.ratio <= each.speed.high for each in verdicts)


def test_a_clear_gain_is_better():
    """30 % in every pair is shown; the ratio and the number of pairs are said."""
    verdict = judge([(measured(100), measured(130))] * 4, prior_variance=0.005, prior_df=12)
    assert verdict.speed.ratio == pytest.approx(1.3)
    assert (verdict.better, verdict.pairs, verdict.score) == (True, 4, verdict.speed)


def test_a_gain_of_one_percent_is_no_change_however_sure():
    """A real gain below 2 % is not worth a change."""
    verdict = judge([(measured(100), measured(101))] * 40, prior_variance=1e-8, prior_df=100)
    assert verdict.score.low > 1.0
    assert not verdict.better


def test_steadiness_does_not_buy_speed():
    """A config that is 5 % slower is neither better nor steadier, however even its steps and busy its GPU are."""
    verdict = judge([(measured(100, 0.8, 0.3), measured(95, 0.0, 0.9))] * 8, prior_variance=1e-5, prior_df=50)
    assert verdict.speed.high < 0.98
    assert (verdict.better, verdict.steadier) == (False, False)
    assert ln_score(measured(96, 0.0, 1.0), measured(100, 9.0, 0.01)) < 0.0


@pytest.mark.parametrize(
    ("today", "other", "is_steadier"),
    [
        ((0.8, None), (0.2, None), True),
        ((0.8, 0.31), (0.2, 0.88), True),
        ((0.2, 0.31), (0.2, 0.88), True),
        ((0.2, 0.88), (0.2, 0.88), False),
        ((0.8, 0.88), (0.2, 0.6), False),
        ((None, None), (0.2, None), False),
    ],
)
def test_as_fast_and_steadier_is_a_verdict_of_its_own(today, other, is_steadier):
    """Evener steps or a busier GPU at the same speed, if neither of them is the worse for it."""
    pairs = [(measured(100 + noise, *today), measured(100 - noise, *other)) for noise in (0.3, -0.2, 0.1, -0.3)]
    verdict = judge(pairs, prior_variance=1e-5, prior_df=2)
    assert (verdict.better, verdict.steadier) == (False, is_steadier)


def test_pairs_that_saw_too_few_cycles_are_wrong_together():
    """However well they agree: each of their trials held one stall too many or too few."""
    seen = judge([(measured(100), measured(115))] * 6, prior_variance=1e-4, prior_df=2)
    few = [tuple(replace(measured(speed), cycles=1, speed_error=0.1) for speed in (100, 115))] * 6
    unseen = judge(few, prior_variance=1e-4, prior_df=2)
    assert (seen.better, unseen.better) == (True, False)
    assert unseen.speed.low < 1.0 < unseen.speed.high
    some = [*few[:2], *[(measured(100), measured(115))] * 4]  # what most trials do not have is noise like others
    assert judge(some, prior_variance=1e-4, prior_df=2).better


def test_more_pairs_are_needed_for_smaller_gains():
    """Pairs are always even, at least 4, at most what there is time for."""
    needed = [pairs_needed(math.log(gain), 0.11, prior_df=10) for gain in (1.5, 1.3, 1.2, 1.15, 1.01)]
    assert needed == [4, *sorted(needed[1:-1]), 40]
    assert all(pairs % 2 == 0 for pairs in needed)
    assert pairs_needed(0.0, 0.11, at_most=9) == 8
    assert pairs_needed(0.0, 0.11, at_most=1) == 4


def test_pairs_needed_show_the_gain_as_often_as_promised():
    """A true gain is found in about the asked share of confirmations, with the number of pairs that it asks for."""
    rng = random.Random(11)
    gain, sd = math.log(1.2), 0.08 * math.sqrt(2)
    pairs = pairs_needed(gain, sd, prior_df=12)
    shown = 0
    for _ in range(600):
        sample = [[measured(100 * math.exp(rng.gauss(mean, 0.08))) for mean in (0, gain)] for _ in range(pairs)]
        shown += judge(sample, prior_variance=sd**2, prior_df=12).better
    assert 0.78 <= shown / 600 <= 0.93  # rounding up to an even number gives a little more than 80 %


def paired(gain, *noise):
    """Pairs with that gain; ln noise of the baseline's and of the candidate's trial of each."""
    return [(measured(100 * math.exp(one)), measured(100 * gain * math.exp(other))) for one, other in noise]


CALM = [(0.01, -0.02), (-0.03, 0.02), (0.02, 0.0), (0.0, 0.03), (-0.02, -0.01), (0.01, 0.02)]


@pytest.mark.parametrize("side", [0, 1])
def test_a_slow_trial_counts_like_any_other(side):
    """It counts as one that is less far off, and the interval is wider for it; of two in six, both count in full."""
    slowed = [math.log(0.6) if side == which else 0.0 for which in (0, 1)]
    calm, one, two = (
        judge(paired(1.15, *CALM[: 6 - count], *[slowed] * count), prior_variance=0.005, prior_df=2)
        for count in range(3)
    )
    assert one.pairs == 6
    assert one.speed.low < 1.15 < one.speed.high
    assert calm.standard_error < one.standard_error < two.standard_error


def stalled(seconds, *, stalls, share=0.5):
    """Trial of so many samples at 100/s, with stalls at random that take that share of its time."""
    error = share / math.sqrt(max(1, stalls)) if stalls else 0.005
    return replace(measured(1000 / seconds), window_s=seconds, cycles=stalls or None, speed_error=error)


def test_the_ratio_is_that_of_the_time_for_all_work():
    """The means of ln speed would tell another one: a trial with two stalls counts with all of its time."""
    pairs = [(stalled(20.0, stalls=2), stalled(10.0, stalls=1)), (stalled(10.0, stalls=1), stalled(10.0, stalls=1))]
    assert judge(pairs, prior_variance=0.01, prior_df=2).speed.ratio == pytest.approx(30 / 20)


def test_what_stalls_vary_by_is_told_by_the_steps_of_all_pairs():
    """Two pairs that agree by chance are not sure of a ratio in which a dozen stalls took half of the time."""
    calm = judge(paired(1.5, *CALM[:2]), prior_variance=0.0005, prior_df=4)
    pairs = [(stalled(15.0, stalls=3), stalled(10.0, stalls=3))] * 2
    rare = judge(pairs, prior_variance=0.0005, prior_df=4)
    many = judge([(stalled(15.0, stalls=300), stalled(10.0, stalls=300))] * 2, prior_variance=0.0005, prior_df=4)
    assert (calm.better, rare.better, many.better) == (True, False, True)
    assert rare.speed.high / rare.speed.low > 2 * many.speed.high / many.speed.low


def test_the_earlier_a_sequential_confirmation_stops_the_wider_is_its_interval():
    """Two pairs have to be surer than four, and those than the last ones; a fixed number is judged at 95 %."""
    pairs = [(measured(100), measured(130))] * 6
    lows = [
        judge(pairs[:count], prior_variance=0.0128, prior_df=50, planned_pairs=planned).score.low
        for count, planned in ((2, 6), (4, 6), (4, 4), (4, None))
    ]
    assert lows == sorted(lows)
    assert len(set(lows)) == 4


@pytest.mark.parametrize(
    ("count", "planned", "confidence"), [(2, 8, 0.99), (4, 8, 0.985), (8, 8, 0.965), (6, None, 0.95)]
)
def test_a_judgement_has_the_confidence_of_its_intervals(count, planned, confidence):
    """Who reads an interval has to know of which."""
    judged = judge([(measured(100), measured(130))] * count, prior_variance=0.0128, prior_df=50, planned_pairs=planned)
    assert judged.confidence == confidence


def test_it_is_futile_to_go_on_where_the_rest_would_hardly_show_a_gain():
    """A candidate that is slower so far is given up; one that is faster, or that the noise hides, is not."""
    prior = {"prior_variance": 2 * 0.03**2, "prior_df": 2, "planned_pairs": 12}
    slower, faster = (judge(paired(gain, *CALM[:4]), **prior) for gain in (0.95, 1.1))
    assert slower.is_futile(12)
    assert not faster.is_futile(12)
    wide = [(0.2, -0.1), (-0.2, 0.2), (0.1, 0.2), (-0.1, -0.2)]
    assert not judge(paired(1.05, *wide), **prior).is_futile(12)


def bimodal(rng):
    """Draw ln of one trial's speed: two modes, CV 8 % in all, as identical configs were seen to scatter."""
    return (0.075 if rng.random() < 0.5 else -0.075) + rng.gauss(0, 0.028)


@pytest.mark.parametrize("pairs", [4, 6])
def test_simulated_confirmations_keep_their_promise(pairs):
    """The interval covers 93-98 % with bimodal noise of 8 %, and equal configs are called better in at most 2 %."""
    rng, confirmations, covered, false_wins = random.Random(2024), 2000, 0, 0
    for _ in range(confirmations):
        # What a study has by then: a few points measured two or three times.
        repeats = [[bimodal(rng) for _ in range(size)] for size in (3, 3, 2, 2, 2, 2)]
        variance, df = pooled_variance(repeats)
        sample = [[measured(100 * math.exp(bimodal(rng))) for _ in range(2)] for _ in range(pairs)]
        verdict = judge(sample, prior_variance=2 * variance, prior_df=df)
        covered += verdict.speed.low <= 1.0 <= verdict.speed.high
        false_wins += verdict.better
    assert 0.93 <= covered / confirmations <= 0.98
    assert false_wins / confirmations <= 0.02


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_slower_point_is_never_the_better_one_by_utilization(lead, speed):
    """Points slower by 2 % or more fall below the baseline, the slower the further; faster ones keep their score."""
    left = lead - UTILIZATION.penalty(lead, speed)
    if speed > math.log(0.98):
        assert left == lead
    elif speed < math.log(0.98):
        assert left < 0.0
        assert left - UTILIZATION.penalty(left, speed - 0.1) < left
    assert THROUGHPUT.penalty(lead, speed) == 0.0


def test_by_utilization_speed_must_be_kept_beyond_doubt():
    """Twice as busy at the same speed is better if the pairs are sure of the speed, and not if they are not."""
    pairs = [(measured(100, gpu_utilization=0.4), measured(100, gpu_utilization=0.8))] * 8
    sure, unsure = (
        judge(pairs, prior_variance=1e-4, prior_df=20, speed_prior=(variance, 20), objective=UTILIZATION)
        for variance in (1e-4, 1e-1)
    )
    assert (sure.better, unsure.better, unsure.score) == (True, False, sure.score)
    assert sure.score.ratio == pytest.approx(2.0)
    assert unsure.speed.low < 0.98


COLD = st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0), st.floats(0.0, 1.0))


@given(st.tuples(COLD, COLD))
def test_the_speedup_with_full_caches_is_within_the_interval(cold):
    """Each is at last at least as fast as measured, and at most as fast as without any wait for data."""
    pair = [measured(speed, filled_samples_per_s=speed * gain) for speed, gain, _ in cold]
    verdict = judge([pair] * 4, prior_variance=1e-4, prior_df=10)
    truth = [speed * gain**share for speed, gain, share in cold]
    for ratio in (verdict.speed, verdict.score):
        assert ratio.low <= truth[1] / truth[0] <= ratio.high
        assert ratio.ratio == pytest.approx(pair[1].filled_samples_per_s / pair[0].filled_samples_per_s)


@pytest.mark.parametrize(
    ("gain_sd", "prior_df", "pairs"),
    [(2.09, 0.0, 4), (2.07, 0.0, 6), (1.43, 0.0, 6), (1.42, 0.0, 8), (1.75, 2.0, 4), (1.74, 2.0, 6)],
)
def test_pairs_needed_are_those_of_the_t_table(gain_sd, prior_df, pairs):
    """(3.182 + 0.978) / √4 is 2.08 standard deviations of a pair, for 95 % and a power of 80 %, and so on."""
    assert pairs_needed(math.log(LEAST_SCORE_GAIN) + gain_sd * 0.1, 0.1, prior_df=prior_df) == pairs


def judgement(ratio, **changes):
    """Judgement of four pairs with that ratio."""
    one = Ratio(ratio=ratio, low=ratio / 1.1, high=ratio * 1.1)
    return replace(Judgement(speed=one, score=one, pairs=4), **changes)


@pytest.mark.parametrize(("pairs", "planned", "df"), [(2, 12, 3.0), (4, 8, math.inf), (6, 8, 5.0), (4, 16, 2.0)])
def test_futile_is_what_luck_of_one_in_a_hundred_would_not_confirm(pairs, planned, df):
    """The interval after the last pair, were the rest of the pairs as lucky as that, would still not clear 2 %."""
    share, last = pairs / planned, confidence_of(planned, planned)
    luck = student_t_quantile(0.99, df) * math.sqrt(1.0 - share)
    half_width = student_t_quantile((1.0 + last) / 2.0, df + (planned - pairs)) * math.sqrt(share)
    border = math.log(LEAST_SCORE_GAIN) + (half_width - luck) * 0.1
    below, above = (
        judgement(math.exp(border + shift), pairs=pairs, df=df, standard_error=0.1) for shift in (-1e-3, 1e-3)
    )
    assert below.is_futile(planned)
    assert not above.is_futile(planned)


@pytest.mark.parametrize("pairs", [8, 9])
def test_after_the_last_pair_only_what_is_better_is_not_futile(pairs):
    """However near it came to it."""
    assert judgement(1.1, pairs=pairs).is_futile(8)
    assert not judgement(1.5, pairs=pairs).is_futile(8)


def test_machines_that_differ_have_to_show_a_gain_each():
    """The interval holds on each of them."""
    good = judgement(1.44, df=3.0)
    poor = judgement(1.0, standard_error=0.01)
    both = on_all_machines([good, poor])
    assert both.score == both.speed == Ratio(ratio=pytest.approx(1.2), low=1.0 / 1.1, high=pytest.approx(1.44 * 1.1))
    assert (both.better, both.pairs, both.df) == (False, 8, 3.0)
    assert both.smallest_gain == pytest.approx(1.02 * 1.2 * 1.1 - 1.0)
    assert (both.standard_error, both.of_machines) == (max(good.standard_error, 0.01), (good, poor))
    assert on_all_machines([good]) == good


@pytest.mark.parametrize("machines", [2, 4, 6])
@pytest.mark.parametrize(("times", "agree"), [(0.99, True), (1.01, False)])
def test_machines_agree_up_to_two_standard_deviations_of_cochrans_q(machines, times, agree):
    """The sum of squared distances from the mean, in standard errors; its mean is n - 1, its variance twice that."""
    variance = (math.log(1.1) ** 2 + (2.0 * _OF_A_CLASS_SD) ** 2) / 4.0
    most = (machines - 1) + 2.0 * math.sqrt(2.0 * (machines - 1))
    apart = times * math.sqrt(most * variance / machines)
    both = on_all_machines([judgement(1.2 * math.exp(sign * apart)) for sign in (1, -1) * (machines // 2)])
    assert (both.score.high < 1.2 * math.exp(apart) * 1.1 * 0.999) is agree


def test_machines_that_agree_show_more_than_each_alone():
    """Their ratios are pooled, the closer one counts for more; a gain that neither shows alone may be shown."""
    one, other = judgement(1.1), judgement(1.14)
    both = on_all_machines([one, other])
    assert not one.better
    assert both.better
    assert one.score.low < both.score.low < both.score.ratio < both.score.high < other.score.high
    assert both.score.high / both.score.low < one.score.high / one.score.low
    close = replace(one, score=Ratio(ratio=1.1, low=1.09, high=1.11))
    assert on_all_machines([close, other]).score.ratio < both.score.ratio
    assert both.is_futile(6) == (one.is_futile(6) and other.is_futile(6))


def test_the_smallest_gain_is_that_of_which_pairs_so_far_apart_just_show_two_percent():
    """Its interval begins at 1.02: with luck as often as with bad luck, it is shown."""
    prior = {"prior_variance": 0.005, "prior_df": 12}
    smallest = judge([(measured(100), measured(130))] * 4, **prior).smallest_gain
    verdict = judge([(measured(100), measured(100 * (1.0 + smallest)))] * 4, **prior)
    assert verdict.score.low == pytest.approx(LEAST_SCORE_GAIN)
    assert 0.02 < smallest < 0.2
