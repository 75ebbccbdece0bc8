"""Promises of the verdict on utilization: what is called a cycle, which period it has, and what is not one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.utilization import Pattern, Segment, oscillation
from scripts.bench.oscillation_verdicts import DriverWindows, GpuTrace, SquareWave, ramp, random_bursts, white_noise

WINDOW_S = 1 / 6
RUN_S = 30.0
SEEDS = range(12)
WINDOWS = DriverWindows(length_s=WINDOW_S)


def segment(busy, *, window_s=WINDOW_S, t0_s=0.0):
    """Driver windows without gaps."""
    ends_s = t0_s + window_s * np.arange(1, len(busy) + 1)
    lengths_s = np.full(len(busy), window_s)
    return Segment(asked_s=window_s * len(busy), ends_s=ends_s, lengths_s=lengths_s, busy=np.asarray(busy, dtype=float))


def numbers(seen):
    """All of a verdict but its name."""
    return [seen.low, seen.high, seen.mean, seen.p10, seen.duty, seen.rise, seen.period_s]


def wave(period_s, *, duty=0.5, low=0.02, high=0.40, jitter=0.0, window_s=WINDOW_S, seed=0, **view):
    """A wave, the trial that saw it, and the period that it had in truth."""
    rng = np.random.default_rng(seed)
    trace = SquareWave(period_s=period_s, duty=duty, low=low, high=high, jitter=jitter).trace(RUN_S, rng)
    driver = DriverWindows(length_s=window_s, **view)
    return trace, trace.seen(0.0, RUN_S, driver, rng), trace.cycle_s(0.0, RUN_S)


@pytest.mark.parametrize("period_s", [0.5, 0.55, 0.7, 1.0, 1.3, 2.1, 3.0, 4.7, 8.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_gpu_between_2_and_40_percent_is_seen_as_it_is(period_s, seed):
    """The wave that people complain about: its mean to 1 point, its levels, its period to 5 %, whatever the phase."""
    trace, seen_windows, _ = wave(period_s, seed=seed)
    seen = oscillation([seen_windows])
    assert seen.mean == pytest.approx(trace.mean(0.0, RUN_S), abs=0.01)
    assert (seen.pattern, seen.period_s) == (Pattern.CYCLIC, pytest.approx(period_s, rel=0.05))
    if period_s >= 1.0:
        assert (seen.low, seen.high) == pytest.approx((0.02, 0.40), abs=0.02)
        assert seen.duty == pytest.approx(0.5, abs=0.05)
        assert seen.p10 == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize("duty", [0.2, 0.35, 0.65, 0.8])
@pytest.mark.parametrize("jitter", [0.0, 0.05])
@pytest.mark.parametrize(
    ("period_s", "window_s"), [(1.1, 1 / 6), (2.1, 1 / 6), (5.3, 1 / 6), (3.7, 1.0), (5.0, 1.0), (8.0, 1.0)]
)
def test_narrow_wide_and_uneven_cycles_have_their_period(period_s, window_s, duty, jitter):
    """Short stalls, short bursts, cycles that vary by 5 %, and drivers that look once a second."""
    for seed in SEEDS:
        trace, seen_windows, true_s = wave(period_s, duty=duty, jitter=jitter, window_s=window_s, high=0.6, seed=seed)
        seen = oscillation([seen_windows])
        assert (seen.pattern, seen.period_s) == (Pattern.CYCLIC, pytest.approx(true_s, rel=0.05))
        ends_s = seen_windows.ends_s
        assert seen.mean == pytest.approx(trace.mean(ends_s[0] - window_s, ends_s[-1]), abs=0.005)


def test_a_cycle_on_a_slope_is_a_cycle():
    """The trend neither hides the period nor blurs the two levels."""
    trace, _, _ = wave(2.1, low=0.1, high=0.4)
    times_s = np.linspace(0.0, RUN_S, 600)
    rising = np.interp(np.arange(0.0, RUN_S, 0.01), times_s, np.linspace(0.0, 0.4, 600))
    fine_s = np.arange(0.0, RUN_S + 0.005, 0.01)
    levels = np.diff(trace.busy_s(fine_s)) / 0.01 + rising
    seen = oscillation([GpuTrace(borders_s=fine_s, levels=levels).seen(0.0, RUN_S, WINDOWS, np.random.default_rng(1))])
    assert (seen.pattern, seen.period_s) == (Pattern.CYCLIC, pytest.approx(2.1, rel=0.05))
    assert seen.rise == pytest.approx(0.4, abs=0.1)
    assert seen.high - seen.low == pytest.approx(0.3, abs=0.05)


def called(traces, **options):
    """Return the number of times that each verdict falls."""
    windows = (trace.seen(0.0, RUN_S, WINDOWS, np.random.default_rng(seed)) for seed, trace in enumerate(traces))
    return Counter(oscillation([one], **options).pattern for one in windows)


def test_noise_is_not_a_cycle():
    """Not one of a hundred noisy series gets a period; deep noise is called bursty, shallow noise flat."""
    rngs = [np.random.default_rng(seed) for seed in range(100)]
    deep = [white_noise(0.5, 0.25, WINDOW_S, length_s=RUN_S, rng=rng) for rng in rngs]
    shallow = [white_noise(0.5, 0.05, WINDOW_S, length_s=RUN_S, rng=rng) for rng in rngs]
    assert called(deep) == {Pattern.BURSTY: 100}
    assert called(shallow) == {Pattern.FLAT: 100}


@pytest.mark.parametrize(("burst_s", "pause_s"), [(0.3, 0.3), (1.0, 1.0), (0.3, 1.5), (0.2, 3.0)])
def test_random_bursts_are_not_a_cycle(burst_s, pause_s):
    """Bursts at random times look periodic by chance in no more than 3 of 100 trials."""
    rngs = [np.random.default_rng(seed) for seed in range(100)]
    verdicts = called(random_bursts(burst_s, pause_s, 0.02, 0.6, length_s=RUN_S, rng=rng) for rng in rngs)
    assert verdicts[Pattern.CYCLIC] <= 3
    assert verdicts[Pattern.BURSTY] >= 80


@pytest.mark.parametrize(("first", "last"), [(0.3, 0.5), (0.9, 0.6), (0.0, 1.0)])
def test_a_slope_is_drift(first, last):
    """A ramp has no period, and its rise is what it rises by, with its sign."""
    trace = ramp(first, last, length_s=RUN_S)
    seen = oscillation([trace.seen(0.0, RUN_S, WINDOWS, np.random.default_rng(0))])
    assert seen.pattern is Pattern.DRIFT
    assert seen.rise == pytest.approx(last - first, abs=0.02)


@pytest.mark.parametrize("period_s", [0.12, 0.14, 0.2, 0.23, 0.25, 0.27, 0.3])
def test_a_beat_between_step_and_driver_window_is_not_a_cycle(period_s):
    """A wave faster than the driver's windows is too shallow there to be given the period of its beat."""
    for seed in SEEDS:
        assert oscillation([wave(period_s, seed=seed)[1]]).pattern is not Pattern.CYCLIC


@pytest.mark.parametrize("step_s", [0.22, 0.23, 0.24, 0.25])
def test_the_beat_of_a_known_step_is_recognized_however_deep(step_s):
    """Steps that are all or nothing beat deep enough to look like a slow cycle; who knows their time is not fooled."""
    for seed in SEEDS:
        _, windows, _ = wave(step_s, low=0.0, high=1.0, seed=seed)
        assert oscillation([windows], step_s=step_s).period_s is None
    assert oscillation([windows]).pattern is Pattern.CYCLIC  # it really cannot be told otherwise


@pytest.mark.parametrize("windows_a_period", [2.1, 2.4, 2.5, 2.7])
def test_a_period_of_under_3_driver_windows_is_not_claimed(windows_a_period):
    """Above half the sampling rate nothing is certain: neither the period nor a multiple of it is reported."""
    for seed in SEEDS:
        _, windows, _ = wave(windows_a_period * WINDOW_S, low=0.0, high=1.0, seed=seed)
        assert oscillation([windows]).pattern is Pattern.BURSTY


def test_runs_of_a_point_are_put_together_but_never_glued():
    """Short trials show the period together; when they were made, and in which order, is no matter."""
    rng = np.random.default_rng(5)
    trace = SquareWave(period_s=2.1, duty=0.5, low=0.02, high=0.40).trace(300.0, rng)
    trials = [trace.seen(t0_s, t0_s + 7.0, WINDOWS, rng) for t0_s in (3.0, 100.7, 251.9)]
    together = oscillation(trials)
    assert (together.pattern, together.period_s) == (Pattern.CYCLIC, pytest.approx(2.1, rel=0.05))
    assert numbers(oscillation(trials[::-1])) == pytest.approx(numbers(together))
    # One burst in each trial is no period, though their samples in a row would have one.
    burst = [0.0] * 3 + [1.0] * 6 + [0.0] * 3
    assert oscillation([segment(burst * 20)]).pattern is Pattern.CYCLIC
    assert oscillation([segment(burst)] * 20).pattern is Pattern.BURSTY


@pytest.mark.parametrize("first", [0.02, 0.40])
@pytest.mark.parametrize(
    ("period_s", "run_s"),
    [(0.7, 1.4), (0.9, 1.4), (1.4, 1.4), (2.0, 1.4), (0.8, 2.0), (2.0, 2.0), (2.0, 5.0), (6.0, 6.0), (5.0, 11.0)],
)
def test_runs_that_begin_with_the_same_wave_do_not_drift(period_s, run_s, first):
    """However many they are, and although each of them falls, or rises: it is a wave, with the levels that it has."""
    borders_s = period_s / 2 * np.arange(40)
    trace = GpuTrace(borders_s=borders_s, levels=np.where(np.arange(39) % 2, 0.42 - first, first))
    for count in (2, 12, 40):
        seen = oscillation([trace.seen(0.0, run_s, WINDOWS, np.random.default_rng(seed)) for seed in range(count)])
        assert seen.pattern is Pattern.BURSTY
        if period_s >= 1.0:
            assert (seen.low, seen.high) == pytest.approx((0.02, 0.40), abs=0.02)


def test_runs_at_different_levels_neither_drift_nor_cycle():
    """Runs differ for many reasons; a ripple of two points in each has not the swing that lies between them."""
    for ripple in (0.0, 0.02):
        trials = [segment(level + ripple * (np.arange(180) % 6 < 3)) for level in (0.9, 0.7, 0.5)]
        assert oscillation(trials).pattern is Pattern.BURSTY


@pytest.mark.parametrize(("swing", "pattern"), [(0.14, Pattern.FLAT), (0.15, Pattern.BURSTY), (0.16, Pattern.BURSTY)])
@given(low=st.integers(0, 80))
def test_levels_count_from_15_points_apart(swing, pattern, low):
    """The border is 15 points at any level, in spite of what binary fractions make of percents."""
    rng = np.random.default_rng(7)
    high = np.tile([True, False], 60)
    rng.shuffle(high)
    seen = oscillation([segment(np.where(high, (low + round(100 * swing)) / 100, low / 100))])
    assert seen.pattern is pattern
    assert (seen.low, seen.high) == pytest.approx((low / 100, low / 100 + swing))


@given(st.lists(st.tuples(st.integers(0, 100), st.floats(0.05, 1.5), st.floats(0.0, 3.0)), min_size=1, max_size=80))
def test_whatever_comes_the_numbers_are_those_of_the_time_covered(windows):
    """For any windows with any gaps: the mean is exact, levels are ordered, and nothing is outside 0..1."""
    busy = np.array([percent / 100 for percent, _, _ in windows])
    lengths_s = np.array([length_s for _, length_s, _ in windows])
    ends_s = np.cumsum(lengths_s + np.array([gap_s for _, _, gap_s in windows]))
    seen = oscillation([Segment(asked_s=float(ends_s[-1]), ends_s=ends_s, lengths_s=lengths_s, busy=busy)])
    assert seen.mean == pytest.approx(float(busy @ lengths_s / lengths_s.sum()))
    assert 0.0 <= seen.low <= seen.high <= 1.0
    assert seen.duty is None if seen.low == seen.high else 0.0 <= seen.duty <= 1.0
    assert lengths_s[busy <= seen.p10].sum() >= 0.1 * lengths_s.sum() * (1 - 1e-6)
    assert (seen.period_s is not None) == (seen.pattern is Pattern.CYCLIC)


@given(st.sampled_from([0.5, 0.9]), st.integers(20, 200), st.integers(0, 3))
def test_a_steady_gpu_is_flat(level, count, spread):
    """Also when the driver's rounding makes it go to and fro between two percents."""
    busy = level + 0.01 * np.arange(count) % (0.01 * (spread + 1))
    assert oscillation([segment(busy)]).pattern is Pattern.FLAT
