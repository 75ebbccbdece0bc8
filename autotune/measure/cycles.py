"""Cycles of steps between stalls, and the standard error of a speed.

A cycle ends where training is fast again after slow steps. Speed is a ratio estimator over whole, regenerative cycles
(Law, *Simulation Modeling and Analysis*, 5th ed., section 9.5). Cycles of cycles are slower rhythms, such as epochs.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autotune.measure.statistics import LEAST_CYCLES

Series = NDArray[np.float64]
"""Numbers in time order, shape (n,)."""

MSER_BATCH = 5
"""Observations in one batch mean of MSER-5."""

_RESOLUTION = 1e-6  # of a clock, relative to a mean of steps
_ROUNDING = 1e-9  # values closer than this are equal


def mser5_truncation(series: ArrayLike) -> int:
    """Return the number of observations at the start that belong to the warm-up, by MSER-5.

    Drops the leading means of 5 that minimize the squared standard error of the mean of the rest (White, "An effective
    truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997).

    Returns:
        A multiple of 5, at most half of the series.
    """
    values = np.asarray(series, dtype=float)
    batches = len(values) // MSER_BATCH
    if batches < 2:
        return 0
    means = values[: batches * MSER_BATCH].reshape(batches, MSER_BATCH).mean(axis=1)
    # Centred on the half that is always kept, against cancellation in the sums of squares.
    level = means[batches // 2 :].mean()
    means -= level
    kept = np.arange(batches, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    error = (squares - sums**2 / kept) / kept**2
    # Differences below the clock's resolution are ties; of these argmin takes the smallest cut.
    error = np.maximum(error, (_RESOLUTION * level) ** 2 / kept)
    return int(np.argmin(error[: batches // 2 + 1])) * MSER_BATCH


def integrated_autocorrelation_time(series: ArrayLike) -> float:
    """Return how many observations carry as much information as one independent one, at least 1.

    ``1 + 2 * sum(autocorrelation)`` up to Sokal's self-consistent window of 5 such times (Sokal, "Monte Carlo methods
    in statistical mechanics", 1997, section 3).
    """
    values = np.asarray(series, dtype=float)
    n = len(values)
    if n < 2:
        return 1.0
    values = values - values.mean()
    size = 1 << (2 * n - 1).bit_length()  # zero-padded, so that the transform does not wrap around
    spectrum = np.fft.rfft(values, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    if covariance[0] <= 1e-24 * n or n < 4:
        return 1.0
    times = 2.0 * np.cumsum(covariance / covariance[0]) - 1.0
    closed = np.nonzero(np.arange(n) >= 5.0 * times)[0]
    return max(1.0, float(times[closed[0] if len(closed) else n - 1]))


class TwoGroups(NamedTuple):
    """Lower and upper group of some values, with their means.

    Attributes:
        order: Indices of the values, ascending by value.
        below: Size of the lower group, the first of `order`.
        explained: Share of the variance that is between the groups.
    """

    order: NDArray[np.intp]
    below: int
    low: float
    high: float
    explained: float


def two_groups(values: Series, weights: Series) -> TwoGroups | None:
    """Split values where the variance between the groups is largest; None if all are equal.

    Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9(1), 1979.

    Args:
        weights: Weight of each value, e.g. its duration.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order] / weights.sum()
    borders = np.flatnonzero(np.diff(values) > _ROUNDING) + 1
    if not len(borders):
        return None
    mean = float(weights @ values)
    share = np.cumsum(weights)[borders - 1]
    moment = np.cumsum(weights * (values - mean))[borders - 1]
    between = moment**2 / (share * (1.0 - share))
    best = int(np.argmax(between))
    return TwoGroups(
        order=order,
        below=int(borders[best]),
        low=mean + float(moment[best] / share[best]),
        high=mean - float(moment[best] / (1.0 - share[best])),
        explained=float(between[best] / (weights @ (values - mean) ** 2)),
    )


Ends = NDArray[np.intp]
"""Step indices before which a cycle ends, ascending, shape (n,)."""

Lengths = NDArray[np.intp]
"""Steps from one end to the next, shape (n,)."""

SLOW = 2.0
"""Least ratio of the mean time per unit of work of slow steps to that of fast steps."""

_SHORT = 100.0  # autocorrelation times: a shorter series estimates them poorly
_LENGTH_ERROR = 0.01  # relative standard error of a known cycle length
_REGULAR = 0.3  # largest coefficient of variation; that of random gaps is 1
_FEW = 0.1  # largest share of slow steps among the fast ones at the start
_LEAST, _LEAST_TO_COMPARE = 4, 8  # steps, and cycles, to find slow ones among: a few differ by chance
_SEPARATED = 0.8  # least explained variance of ln pace; normal and uniform noise, split in the middle: 0.64 and 0.75


class Cycles(NamedTuple):
    """Cycles of steps.

    Attributes:
        ends: Ends of the longest regular cycles of which `LEAST_CYCLES` are whole; None if there are none.
        lengths: Steps in each whole cycle of the slowest rhythm.
        beat_s: Median time of the longest whole cycles; None without any.
        are_any: Whether some steps are slow.
    """

    ends: Ends | None
    lengths: Lengths
    beat_s: float | None
    are_any: bool


def cycle_length(lengths: Lengths) -> int | None:
    """Return the number of steps in a cycle; None unless it is known to 1 %."""
    if len(lengths) < 2 or lengths.std(ddof=1) > _LENGTH_ERROR * math.sqrt(len(lengths)) * lengths.mean():
        return None
    return round(float(lengths.mean()))


def find_cycles(durations_s: Series, units: Series) -> Cycles:
    """Find the cycles in steps with these durations and units of work."""
    found = list(_rhythms(durations_s, units))
    enough = [ends for ends in found if len(ends) > LEAST_CYCLES and _are_regular(np.diff(ends))]
    whole = [_sums(durations_s, ends) for ends in found if len(ends) > 1]
    return Cycles(
        ends=enough[-1] if enough else None,
        lengths=np.diff(found[-1]) if found else np.empty(0, dtype=np.intp),
        beat_s=float(np.median(whole[-1])) if whole else None,
        are_any=bool(found) or _slow(durations_s, units) is not None,
    )


def _are_regular(lengths: Lengths) -> bool:
    """Return whether cycles have about equally many steps: a window up to a random stall would omit the long gaps."""
    return float(lengths.std()) <= _REGULAR * float(lengths.mean())


def _rhythms(durations_s: Series, units: Series) -> Iterator[Ends]:
    """Yield the ends of cycles, the fastest rhythm first."""
    ends, least = np.arange(1, len(durations_s) + 1), _LEAST
    while (slow := _slow(durations_s, units)) is not None and len(slow) >= least:
        returns = _returns(slow)
        if not len(returns):
            return
        yield ends[returns]
        durations_s, units = _sums(durations_s, returns + 1), _sums(units, returns + 1)
        ends, least = ends[returns[1:]], _LEAST_TO_COMPARE


def _slow(durations_s: Series, units: Series) -> NDArray[np.bool_] | None:
    """Return which steps are slow, by ln pace weighted by duration; None if all are of one kind."""
    if len(durations_s) < _LEAST:
        return None
    pace = durations_s / units
    groups = two_groups(np.log(pace), durations_s)
    if groups is None or groups.explained < _SEPARATED:
        return None
    is_slow = np.zeros(len(pace), dtype=bool)
    is_slow[groups.order[groups.below :]] = True
    return is_slow if pace[is_slow].mean() >= SLOW * pace[~is_slow].mean() else None


def _returns(slow: NDArray[np.bool_]) -> Ends:
    """Return the indices of slow steps that a fast one follows."""
    return np.flatnonzero(slow[:-1] & ~slow[1:])


def _sums(series: Series, ends: Ends) -> Series:
    return np.diff(np.concatenate(([0.0], np.cumsum(series)))[ends])


def first_end(durations_s: Series, units: Series) -> int | None:
    """Return the number of steps up to the end of the first stall; None before it."""
    slow = _slow(durations_s, units)
    returns = None if slow is None else _returns(slow)
    return None if returns is None or not len(returns) else int(returns[0]) + 1


def warm_up(durations_s: Series, units: Series) -> int:
    """Return the number of steps at the start whose speed does not recur.

    Drops a start with slow steps if none is slow afterwards for twice its time; or else a start with fast steps if none
    is fast afterwards for four times its time (prefetched batches). Then drops the MSER-5 truncation, unless a later
    stretch of equal length is like it.
    """
    slow = _slow(durations_s, units)
    begin = 0 if slow is None else _slow_start(durations_s, slow) or _fast_start(durations_s, slow)
    durations_s, pace = durations_s[begin:], durations_s[begin:] / units[begin:]
    cut = mser5_truncation(pace)
    if not cut:
        return begin
    levels = np.median(pace[: len(pace) // cut * cut].reshape(-1, cut), axis=1)
    usual = np.median(pace[cut:])
    noise = 3.0 * 1.2533 * 1.4826 * np.median(np.abs(pace[cut:] - usual)) / math.sqrt(cut)
    slower, faster = max(levels[1:].max(), usual + noise), min(levels[1:].min(), usual - noise)
    return begin if faster <= levels[0] <= slower else begin + cut


def _slow_start(durations_s: Series, slow: NDArray[np.bool_]) -> int:
    ends_s, begin = np.cumsum(durations_s), 0
    slow_at = np.flatnonzero(slow)
    for index in _returns(slow):
        later = slow_at[slow_at > index]
        fast_until_s = ends_s[later[0] - 1] if len(later) else ends_s[-1]
        if fast_until_s >= 3.0 * ends_s[index]:
            begin = int(index) + 1
    return begin


def _fast_start(durations_s: Series, slow: NDArray[np.bool_]) -> int:
    begin = int(np.flatnonzero(~slow)[-1]) + 1
    is_start = slow[:begin].mean() <= _FEW and durations_s[begin:].sum() >= 4.0 * durations_s[:begin].sum()
    return begin if is_start and len(slow) - begin >= _LEAST_TO_COMPARE else 0


def speed_error(durations_s: Series, units: Series, ends: Ends | None) -> float:
    """Return the relative standard error of the speed, from whole cycles if their ends are known, else from steps.

    The error of a ratio is that of the mean of ``duration - pace * work``.
    """
    time_s = float(durations_s.sum())
    speed = float(units.sum()) / time_s
    if ends is not None and len(ends) > LEAST_CYCLES:
        durations_s, units = _sums(durations_s, ends), _sums(units, ends)
    elif ends is not None:  # too few cycles; their spread shows between trials
        while (slow := _slow(durations_s, units)) is not None:
            durations_s, units = durations_s[~slow], units[~slow]
        speed = float(units.sum() / durations_s.sum())
    left = durations_s - units / speed
    n = len(left)
    return math.sqrt(float(left @ left) / max(1, n - 1) * n * _autocorrelation_time(left)) / time_s


def _autocorrelation_time(series: Series) -> float:
    """Return the integrated autocorrelation time; of short series at least that of an AR(1), corrected for bias.

    In a short series, lag-1 autocorrelation is too small by ``(1 + 3r) / n`` (Kendall, "Note on bias in the estimation
    of autocorrelation", Biometrika 41, 1954).
    """
    n, squares = len(series), float(series @ series)
    if n < 4 or squares <= 0.0:
        return 1.0
    neighbours = float(series[1:] @ series[:-1]) / squares
    neighbours = min(0.98, max(0.0, neighbours + (1.0 + 3.0 * neighbours) / n))
    time, time_of_short = integrated_autocorrelation_time(series), (1.0 + neighbours) / (1.0 - neighbours)
    return min(n / 2.0, max(time, time_of_short if n < _SHORT * time_of_short else 1.0))
