"""Promises of the arithmetic on driver samples: each counts once, with its own length, at its own time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.gpu.records import PolledWindows, SampledWindows, clock_offset_s

NOW_S, EPOCH_S = 5_000.0, 1_760_000_000.0


def epoch_us(t_s):
    """A driver's stamp since 1970."""
    return round((t_s - NOW_S + EPOCH_S) * 1e6)


def boot_us(t_s):
    """A driver's stamp since boot."""
    return round(t_s * 1e6)


def windows_of(samples, *, to_us=epoch_us, batch=7):
    """The windows of samples that are drained in batches, each overlapping the one before, as a ring gives them."""
    rows = [(to_us(t_s), percent) for t_s, percent in samples]
    sampled, windows = SampledWindows(), []
    for end in range(batch, len(rows) + batch, batch):
        now_s = samples[min(end, len(samples)) - 1][0]
        seen = rows[max(0, end - 2 * batch) : end]
        windows += sampled.of(seen, now_s=now_s, epoch_s=now_s - NOW_S + EPOCH_S)
    return windows


def mean(windows):
    """Time-weighted mean of the busy shares."""
    return math.fsum(length * busy for _, length, busy in windows) / math.fsum(length for _, length, _ in windows)


@given(st.floats(0.0, 10.0), st.floats(1.0, 3e7))
def test_stamps_since_1970_and_since_boot_both_find_the_clock(age_s, now_s):
    """Whichever origin a driver counts from, its sample lands where it was on the monotonic clock."""
    for stamp_s in (EPOCH_S - age_s, now_s - age_s):
        if stamp_s > 0:
            offset_s = clock_offset_s(round(stamp_s * 1e6), now_s=now_s, epoch_s=EPOCH_S)
            assert stamp_s + offset_s == pytest.approx(now_s - age_s, abs=1e-3)


@given(
    st.lists(st.tuples(st.floats(0.3, 0.5), st.integers(0, 100)), min_size=2, max_size=80),
    st.integers(1, 30),
    st.sampled_from([epoch_us, boot_us]),
)
def test_each_driver_sample_counts_once_however_it_is_drained(samples, batch, to_us):
    """Overlapping readings of the driver's ring give the mean over time, with either origin of its stamps."""
    ends_s, t_s = [], NOW_S
    for window_s, percent in samples:
        t_s += window_s
        ends_s.append((t_s, percent))
    windows = windows_of(ends_s, batch=batch, to_us=to_us)
    assert len(windows) == len(samples) - 1
    busy_s = sum(window_s * percent / 100 for window_s, percent in samples[1:])
    assert mean(windows) == pytest.approx(busy_s / sum(window_s for window_s, _ in samples[1:]), abs=1e-4)
    assert windows[-1][0] == pytest.approx(t_s, abs=1e-3)


def test_a_gap_is_not_filled_with_a_guess():
    """After a long gap the first sample has no known window; after a short one it stands for its own length only."""
    windows = windows_of([(10.0, 50), (10.5, 50), (20.0, 100), (20.5, 50), (21.7, 80)], batch=2)
    assert [(end_s, length_s) for end_s, length_s, _ in windows] == [
        (pytest.approx(10.5), pytest.approx(0.5)),
        (pytest.approx(20.5), pytest.approx(0.5)),
        (pytest.approx(21.7), pytest.approx(0.5)),
    ]


def test_garbage_of_the_driver_is_dropped():
    """Percentages above 100 do not enter the mean, and their time is not given to their neighbours."""
    windows = windows_of([(10.0, 50), (10.2, 50), (10.4, 2147483632), (10.6, 70)])
    assert [busy for _, _, busy in windows] == [0.5, 0.7]
    assert [length_s for _, length_s, _ in windows] == pytest.approx([0.2, 0.2])


def test_a_driver_that_gives_no_samples_of_an_idle_gpu_does_not_hide_the_idleness():
    """Where the driver says that it is idle, the time without samples counts as idle, and all of it once."""
    sampled, windows = SampledWindows(), []

    def drain(now_s, ends_s):
        new = sampled.of([(boot_us(end_s), 90) for end_s in ends_s], now_s=now_s, epoch_s=now_s - NOW_S + EPOCH_S)
        windows.extend(new or (sampled.idle(now_s) if sampled.overdue(now_s) else []))

    busy_s = [1_000.0 + number / 5 for number in range(6)]
    drain(1_001.0, busy_s)
    for now_s in (1_001.25, 1_001.5, 1_001.75, 1_002.0, 1_002.25):
        drain(now_s, [])
    drain(1_002.5, [1_002.4])
    assert [end_s - length_s for end_s, length_s, _ in windows[1:]] == pytest.approx(
        [end_s for end_s, _, _ in windows[:-1]]
    )
    assert mean(windows) == pytest.approx(0.9 * 6 / 12, abs=1e-3)


def test_a_wall_clock_that_is_set_loses_no_sample():
    """An hour forward or back: the windows go on where they were on the monotonic clock."""
    for step_s in (3_600.0, -3_600.0):
        sampled, windows = SampledWindows(), []
        for number in range(1, 9):
            now_s = NOW_S + number / 4
            epoch_s = EPOCH_S + number / 4 + (step_s if number > 4 else 0.0)
            windows += sampled.of([(round(epoch_s * 1e6), 10 * number)], now_s=now_s, epoch_s=epoch_s)
        assert [end_s for end_s, _, _ in windows] == pytest.approx([NOW_S + number / 4 for number in range(2, 9)])
        assert [busy for _, _, busy in windows] == pytest.approx([number / 10 for number in range(2, 9)])


def polled_windows(readings):
    """The windows of (time, percent) readings."""
    polled = PolledWindows()
    return [window for now_s, percent in readings for window in polled.of(percent, now_s=now_s)]


def test_a_repeated_reading_is_one_window():
    """The driver repeats its newest value: what was shown for half a second is one window of half a second."""
    shown = [20] * 5 + [80] * 5 + [20]
    windows = polled_windows([(10.0 + number / 10, percent) for number, percent in enumerate(shown)])
    assert windows == [
        (pytest.approx(10.5), pytest.approx(0.5), 0.2),
        (pytest.approx(11.0), pytest.approx(0.5), 0.8),
    ]


def test_a_value_that_stays_is_a_window_each_second():
    """A GPU at a constant 70 % is known to be so, second by second."""
    windows = polled_windows([(10.0 + number / 10, 70) for number in range(32)])
    assert [length_s for _, length_s, _ in windows] == pytest.approx([1.0, 1.0, 1.0])
    assert mean(windows) == pytest.approx(0.7)
