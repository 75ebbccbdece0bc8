"""Promises of the statistics: published values, known series, and properties that must hold for all."""

import math

import numpy as np
import pytest

from autotune.measure.statistics import (
    integrated_autocorrelation_time,
    moderated_interval,
    mser5_truncation,
    optimal_window_s,
    pooled_variance,
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


def test_pooling_weighs_groups_by_their_degrees_of_freedom():
    """Two groups of unlike means and sizes give the variance within; singles say nothing."""
    assert pooled_variance([[1.0, 3.0], [10.0, 11.0, 12.0], [99.0]]) == (pytest.approx(4.0 / 3.0), 3.0)
    assert pooled_variance([[1.0], []]) == (0.0, 0.0)


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
    assert optimal_window_s(8.0, 0.02, 0.01, min_s=2.0, max_s=10.0) == pytest.approx(4.0)
    assert optimal_window_s(0.1, 0.001, 0.01, min_s=2.0, max_s=10.0) == 2.0
    assert optimal_window_s(100.0, 0.1, 0.01, min_s=2.0, max_s=10.0) == 10.0
    assert optimal_window_s(8.0, 0.02, 0.0, min_s=2.0, max_s=10.0) == 10.0
