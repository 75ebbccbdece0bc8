"""Promises of the statistics: published values, known series, and properties that must hold for all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.statistics import (
    block_cv,
    integrated_autocorrelation_time,
    moderated_interval,
    mser5_truncation,
    optimal_window_s,
    pooled_variance,
    student_t_quantile,
    winsorize,
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


@given(st.floats(0.001, 0.999))
def test_t_quantile_is_exact_where_a_closed_form_exists(p):
    """One degree of freedom is the Cauchy distribution; two have a closed form as well."""
    assert student_t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9, abs=1e-9)
    assert student_t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-9, abs=1e-9)


@given(st.floats(0.55, 0.995), st.floats(0.6, 300.0))
def test_t_quantile_inverts_the_integral_of_the_density(p, df):
    """The density integrates to the asked probability at the quantile, for real degrees of freedom too."""
    t = student_t_quantile(p, df)
    # Gauss-Legendre over the angle: t = √df · tan(angle) makes the density smooth, cos(angle)^(df - 1).
    nodes, weights = np.polynomial.legendre.leggauss(200)
    top = math.atan(t / math.sqrt(df))
    angles = (nodes + 1) / 2 * top
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    area = constant * top / 2 * float(weights @ np.cos(angles) ** (df - 1))
    assert 0.5 + area == pytest.approx(p, abs=1e-9)


def test_t_quantile_reaches_the_normal():
    """Infinite degrees of freedom give the normal quantile, and there is no jump on the way."""
    assert student_t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, rel=1e-12)
    assert student_t_quantile(0.975, 0.999e6) == pytest.approx(student_t_quantile(0.975, 1.001e6), rel=1e-8)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.9, 0), (0.9, -1), (math.nan, 3), (0.9, math.nan)])
def test_t_quantile_refuses_what_has_no_answer(p, df):
    """Probabilities and degrees of freedom out of range are an error, never a number."""
    with pytest.raises(ValueError, match="t quantile needs"):
        student_t_quantile(p, df)


def test_mser_cuts_the_warm_up():
    """A slow start of 40 observations is cut, and little more than that."""
    noise = np.random.default_rng(1).normal(0, 0.05, 400)
    warm_up = np.concatenate((np.linspace(3.0, 1.2, 40), np.ones(360)))
    assert 35 <= mser5_truncation(warm_up + noise) <= 60


def test_mser_leaves_a_steady_series_alone():
    """Next to nothing is cut from a series without a warm-up."""
    cuts = [mser5_truncation(np.random.default_rng(seed).normal(1, 0.1, 200)) for seed in range(40)]
    assert np.median(cuts) <= 20


@given(st.lists(st.floats(-1e6, 1e6), max_size=120))
def test_mser_never_drops_more_than_half(series):
    """At least half of any series stays."""
    cut = mser5_truncation(series)
    assert cut % 5 == 0
    assert 2 * cut <= len(series)


def test_mser_does_not_cut_rounding_errors():
    """Equal steps between time stamps of a machine that is up for months are all kept, a real start is not."""
    stamps_s = 1e7 + np.cumsum(np.concatenate((np.full(20, 0.3), np.full(200, 0.1))))
    assert mser5_truncation(np.diff(stamps_s[20:])) == 0
    assert mser5_truncation(np.diff(stamps_s)) == 20


def test_mser_keeps_its_precision_far_from_zero():
    """A large common offset does not change the cut."""
    series = np.concatenate((np.full(20, 2.0), np.random.default_rng(3).normal(1, 0.1, 200)))
    assert mser5_truncation(series + 1e4) == mser5_truncation(series) == 20


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


def test_autocorrelation_time_is_never_below_one():
    """White noise is about 1; an alternating, a constant and an empty series are not credited with less."""
    assert integrated_autocorrelation_time(np.random.default_rng(4).normal(size=10_000)) < 1.2
    assert integrated_autocorrelation_time([1.0, -1.0] * 50) == 1.0
    assert integrated_autocorrelation_time([0.1] * 50) == 1.0
    assert integrated_autocorrelation_time([]) == 1.0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50), st.floats(0.0, 0.5))
def test_winsorizing_only_pulls_in(series, fraction):
    """Order and number of values stay, and none moves outwards."""
    pulled = winsorize(series, fraction)
    assert len(pulled) == len(series)
    assert min(series) <= pulled.min()
    assert pulled.max() <= max(series)
    assert np.all(np.diff(pulled[np.argsort(series)]) >= 0)


def test_length_buckets_are_no_unsteadiness():
    """Steps of very different size at one pace have no variation."""
    work = np.random.default_rng(5).integers(1, 100, 2000).astype(float)
    assert block_cv(work * 1e-3, work) == pytest.approx(0.0, abs=1e-9)


def test_one_stall_does_not_decide_the_variation():
    """A single long pause is pulled in to the 95th percentile; regular stalls are not."""
    steady = np.random.default_rng(6).normal(0.02, 0.001, 2000)
    stalled, regular = steady.copy(), steady.copy()
    stalled[1000] += 5.0
    regular[::40] += 0.2
    ones = np.ones(2000)
    calm, once, often = (block_cv(durations, ones) for durations in (steady, stalled, regular))
    assert once == pytest.approx(calm, rel=0.25)
    assert often > 5 * calm


def test_measuring_longer_is_not_unsteadiness():
    """The variation of the same process does not depend on how long it was watched."""
    random = np.random.default_rng(7)
    short = np.median([block_cv(random.normal(0.02, 0.01, 400), np.ones(400)) for _ in range(50)])
    long = np.median([block_cv(random.normal(0.02, 0.01, 4000), np.ones(4000)) for _ in range(20)])
    assert long == pytest.approx(short, rel=0.15)


def test_no_variation_from_fewer_than_four_blocks():
    """20 steps of 0.05 s make exactly 4 blocks; one step fewer, or shorter steps, make none."""
    assert block_cv([0.05] * 20, [1.0] * 20) == pytest.approx(0.0)
    assert block_cv([0.05] * 19, [1.0] * 19) is None
    assert block_cv([0.049] * 20, [1.0] * 20) is None
    assert block_cv([], []) is None


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.1, 100.0)), min_size=1, max_size=200))
def test_variation_has_no_unit_of_work(steps):
    """Counting work in other units changes nothing."""
    durations, work = np.array(steps).T
    one, other = block_cv(durations, work), block_cv(durations, 1024 * work)
    assert one == (None if other is None else pytest.approx(other, rel=1e-6, abs=1e-9))


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


@pytest.mark.parametrize(("differences", "prior_df"), [([], 10.0), ([0.1], 0.0), ([], 1.0)])
def test_no_interval_from_nothing(differences, prior_df):
    """No interval exists without a difference, or without any knowledge of the spread."""
    with pytest.raises(ValueError, match="give no interval"):
        moderated_interval(differences, 0.01, prior_df)


def test_window_grows_with_the_cost_of_starting():
    """The optimum is √(start cost · within / between), held between its bounds."""
    assert optimal_window_s(8.0, 0.02, 0.01, min_s=2.0, max_s=10.0) == pytest.approx(4.0)
    assert optimal_window_s(0.1, 0.001, 0.01, min_s=2.0, max_s=10.0) == 2.0
    assert optimal_window_s(100.0, 0.1, 0.01, min_s=2.0, max_s=10.0) == 10.0
    assert optimal_window_s(8.0, 0.02, 0.0, min_s=2.0, max_s=10.0) == 10.0
