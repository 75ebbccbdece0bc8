"""Promises of the statistics: published values, known series, and properties that must hold for all."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.cycles import integrated_autocorrelation_time, mser5_truncation, two_groups
from autotune.measure.statistics import (
    moderated_interval,
    optimal_window_s,
    pooled_variance,
    robust_pooled_variance,
    student_t_quantile,
)

PUBLISHED = [  # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2
    (0.975, 3, 3.182),
    (0.975, 5, 2.571),
    (0.975, 10, 2.228),
    (0.975, 30, 2.042),
    (0.975, 100, 1.984),
    (0.95, 4, 2.132),
    (0.90, 7, 1.415),
    (0.999, 6, 5.208),
]


@pytest.mark.parametrize(("p", "df", "t"), PUBLISHED)
def test_t_quantile_agrees_with_the_published_table(p, df, t):
    """The quantile is that of the printed tables, to their last digit."""
    assert student_t_quantile(p, df) == pytest.approx(t, abs=5.1e-4)


def test_mser_cuts_the_warm_up():
    """A slow start of 40 observations is cut, and little more than that."""
    noise = np.random.default_rng(1).normal(0, 0.05, 400)
    warm_up = np.concatenate((np.linspace(3.0, 1.2, 40), np.ones(360)))
    assert 35 <= mser5_truncation(warm_up + noise) <= 60


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_autocorrelation_time_of_a_known_process(correlation):
    """A first-order autoregressive series has the time (1 + r) / (1 - r)."""
    noise = np.random.default_rng(2).normal(size=40_000)
    series = np.empty_like(noise)
    series[0] = noise[0]
    for index in range(1, len(noise)):
        series[index] = correlation * series[index - 1] + noise[index]
    expected = (1 + correlation) / (1 - correlation)
    assert integrated_autocorrelation_time(series) == pytest.approx(expected, rel=0.1)


SERIES = st.lists(st.integers(1, 9), min_size=2, max_size=80).map(lambda some: np.array(some, dtype=float))


@given(SERIES.filter(lambda values: len(values) >= 10))
def test_mser_is_that_of_its_definition(values):
    """The cut of the smallest squared standard error of the mean of the rest, of at most half of the batches."""
    means = [values[at : at + 5].mean() for at in range(0, len(values) - 4, 5)]
    least = (1e-6 * np.mean(means[len(means) // 2 :])) ** 2  # what a clock cannot tell
    rests = [means[cut:] for cut in range(len(means) // 2 + 1)]
    errors = [max(np.var(rest), least) / len(rest) for rest in rests]
    smallest = [cut for cut, error in enumerate(errors) if error <= min(errors) * (1 + 1e-6)]
    assert mser5_truncation(values) / 5 in smallest


@given(SERIES.filter(lambda values: len(values) >= 4 and values.std() > 0))
def test_the_autocorrelation_time_is_that_of_its_definition(values):
    """Sums of products, up to the first lag of five times the time so far."""
    centred = values - values.mean()
    correlations = [float(centred[: len(values) - lag] @ centred[lag:]) for lag in range(len(values))]
    times = 2.0 * np.cumsum(correlations) / correlations[0] - 1.0
    edges = [lag for lag, time in enumerate(times) if lag >= 5.0 * time + 1e-9]
    if not any(abs(lag - 5.0 * time) < 1e-6 for lag, time in enumerate(times)):  # else rounding decides
        expected = max(1.0, times[edges[0] if edges else -1])
        assert integrated_autocorrelation_time(values) == pytest.approx(expected)


@given(SERIES, st.integers(1, 5))
def test_two_groups_are_split_where_most_of_the_variance_is_between_them(values, heavy):
    """Otsu's threshold, by trying all; a weight of n counts as n values."""
    weights = np.where(np.arange(len(values)) % 3 == 0, float(heavy), 1.0)
    found, all_values = two_groups(values, weights), np.repeat(values, weights.astype(int))
    if len(set(values)) == 1:
        assert found is None
        return
    between = {}
    for limit in sorted(set(values))[1:]:
        low, high = all_values[all_values < limit], all_values[all_values >= limit]
        between[limit] = len(low) * len(high) * (high.mean() - low.mean()) ** 2 / len(all_values) ** 2
    best = max(between.values())
    assert found.explained == pytest.approx(best / all_values.var())
    limit = values[found.order[found.below]]
    assert between[limit] == pytest.approx(best)
    assert list(values[found.order]) == sorted(values)
    assert all(values[found.order[: found.below]] < limit)
    groups = all_values[all_values < limit].mean(), all_values[all_values >= limit].mean()
    assert (found.low, found.high) == pytest.approx(groups)


def test_pooling_weighs_groups_by_their_degrees_of_freedom():
    """Two groups of unlike means and sizes give the variance within; singles say nothing."""
    assert pooled_variance([[1.0, 3.0], [10.0, 11.0, 12.0], [99.0]]) == (pytest.approx(4.0 / 3.0), 3.0)
    assert pooled_variance([[1.0], []]) == (0.0, 0.0)


def test_what_was_slowed_down_is_left_out_of_the_variance():
    """By distance from the median of its own group, whatever the groups' levels are."""
    groups = [[0.0, 0.01, -0.01, -2.0], [5.0, 5.02, 5.01]]
    assert robust_pooled_variance(groups) == pooled_variance([[0.0, 0.01, -0.01], groups[1]])
    assert robust_pooled_variance([[1.0]]) == (0.0, 0.0)


def test_without_a_prior_the_interval_is_the_ordinary_one():
    """Four differences give mean ± 3.182 s / √4."""
    mean, half_width = moderated_interval([1.0, 2.0, 3.0, 4.0], 0.0, 0.0)
    assert mean == 2.5
    assert half_width == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-6)


def test_a_prior_narrows_and_steadies_the_interval():
    """Differences that agree by luck do not give a tiny interval if much is known from before."""
    lucky, prior_sd = [0.10, 0.10, 0.10, 0.10], 0.08
    _, alone = moderated_interval(lucky, 0.0, 0.0)
    _, moderated = moderated_interval(lucky, prior_sd**2, 12.0)
    assert alone == pytest.approx(0.0, abs=1e-12)
    assert moderated == pytest.approx(2.1314 * prior_sd * math.sqrt(12 / 15) / 2, rel=1e-3)


def test_window_grows_with_the_cost_of_starting():
    """The optimum is √(start cost · within / between), held between its bounds."""
    given = ((8.0, 0.02, 0.01), (0.1, 0.001, 0.01), (100.0, 0.1, 0.01), (8.0, 0.02, 0.0))
    windows_s = [optimal_window_s(*one, min_s=2.0, max_s=10.0) for one in given]
    assert windows_s == pytest.approx([4.0, 2.0, 10.0, 10.0])


@pytest.mark.parametrize("p", [0.501, 0.51, 0.75, 0.9, 0.975, 0.9999, 1.0 - 1e-9])
def test_t_quantile_is_that_of_the_distributions_with_a_known_formula(p):
    """One degree of freedom is Cauchy's distribution; two and four can be solved, too; and all are symmetric."""
    spread = 4.0 * p * (1.0 - p)
    root = math.cos(math.acos(math.sqrt(spread)) / 3.0) / math.sqrt(spread)
    known = {
        1.0: math.tan(math.pi * (p - 0.5)),
        2.0: (2.0 * p - 1.0) * math.sqrt(2.0 / spread),
        4.0: 2.0 * math.sqrt(max(root - 1.0, 0.0)),
    }
    for df, t in known.items():
        assert student_t_quantile(p, df) == pytest.approx(t, rel=1e-6)
        assert student_t_quantile(1.0 - p, df) == pytest.approx(-t, rel=1e-6)


@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.999])
def test_t_quantile_comes_to_the_normal_one(p):
    """With as many degrees of freedom as one likes, and without a jump on the way there."""
    z = NormalDist().inv_cdf(p)
    assert student_t_quantile(p, math.inf) == pytest.approx(z, rel=1e-12)
    assert student_t_quantile(p, 1.001e6) == pytest.approx(student_t_quantile(p, 0.999e6), rel=1e-8)
    assert student_t_quantile(p, 2e6) - z == pytest.approx(0.5 * (student_t_quantile(p, 1e6) - z), rel=1e-2)


def test_the_median_is_zero_and_what_is_no_probability_is_refused():
    """Of any number of degrees of freedom, which is above zero."""
    assert [student_t_quantile(0.5, df) for df in (0.5, 3.0, 1e7)] == [0.0, 0.0, 0.0]
    for p, df in ((0.0, 3.0), (1.0, 3.0), (-0.1, 3.0), (0.9, 0.0), (0.9, -1.0), (0.9, math.nan)):
        with pytest.raises(ValueError, match="needs 0 < p < 1 and df > 0"):
            student_t_quantile(p, df)
