"""Cycles of training that stops and goes: bursts, stalls, the ends of epochs; and how sure a speed over them is.

A cycle ends where training is fast again after slow steps. Speed is work over time of whole cycles, a ratio estimator
over regenerative cycles (Law, *Simulation Modeling and Analysis*, 5th ed., section 9.5): a window that ends anywhere
holds a stall too many or too few. Cycles are the steps of a slower rhythm, so the same rule finds the cycles of cycles,
such as the ends of epochs in training that comes in bursts.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autotune.measure.statistics import LEAST_CYCLES

Series = NDArray[np.float64]
"""Numbers in the order of time, shape (n,)."""

MSER_BATCH = 5
"""Observations in one batch mean of MSER-5."""

_INDISTINCT = 1e-6
_SAME = 1e-9  # two values closer than this differ by rounding


def mser5_truncation(series: ArrayLike) -> int:
    """Return the number of observations at the start that belong to the warm-up.

    MSER-5: of the means of consecutive batches of 5, drop the first so many that the squared standard error of
    the mean of the rest is smallest, at most half of them (White, "An effective truncation heuristic for bias
    reduction in simulation output", Simulation 69(6), 1997).

    Args:
        series: Observations in order of time; a rest of fewer than 5 at the end takes no part.

    Returns:
        Number of observations to drop: a multiple of 5, at most half of the series.
    """
    values = np.asarray(series, dtype=float)
    batches = len(values) // MSER_BATCH
    if batches < 2:
        return 0
    means = values[: batches * MSER_BATCH].reshape(batches, MSER_BATCH).mean(axis=1)
    # Centred on the half that is always kept: sums of squares from the end stay free of cancellation.
    level = means[batches // 2 :].mean()
    means -= level
    kept = np.arange(batches, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    error = (squares - sums**2 / kept) / kept**2
    # What differs by less than a clock can tell is equal; of equals, the cut that keeps most wins.
    error = np.maximum(error, (_INDISTINCT * level) ** 2 / kept)
    return int(np.argmin(error[: batches // 2 + 1])) * MSER_BATCH


def integrated_autocorrelation_time(series: ArrayLike) -> float:
    """Return the number of observations that carry as much information as one independent one.

    ``1 + 2 * sum(autocorrelation)`` up to Sokal's self-consistent window of 5 such times (Sokal, "Monte Carlo
    methods in statistical mechanics", 1997, section 3).

    Returns:
        At least 1 (white noise): a negative correlation is never credited. 1 for a constant series.
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
    """Values split into a lower and an upper group.

    Attributes:
        order: Indices of the values, lowest first.
        below: Number of values in the lower group: the first of that order.
        low: Mean of the lower group.
        high: Mean of the upper one.
        explained: Share of the variance that is between the groups.
    """

    order: NDArray[np.intp]
    below: int
    low: float
    high: float
    explained: float


def two_groups(values: Series, weights: Series) -> TwoGroups | None:
    """Split values where the variance between two groups of them is largest; None where all are equal.

    Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9(1), 1979.

    Args:
        weights: Weight of each value, e.g. the time that it stands for.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order] / weights.sum()
    borders = np.flatnonzero(np.diff(values) > _SAME) + 1
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
"""Numbers of the steps before which something ends, in ascending order, shape (n,)."""

Lengths = NDArray[np.intp]
"""Numbers of steps from one end to the next, shape (n,)."""

SLOW = 2.0
"""Times the time per unit of work of the fast steps that slow ones take at least, on average."""

_SHORT = 100.0  # autocorrelation times within a series, below which they cannot be estimated well
_SURE = 0.01  # standard error over mean
_UNEVEN = 0.3  # standard deviation over mean: that of what comes at random is 1
_FEW = 0.1  # of the fast steps at the start, that may be slow
_LEAST, _LEAST_TO_COMPARE = 4, 8  # steps, and cycles, of which some may be slow: few that come at random differ, too
_APART = 0.8  # of the variance of ln pace: normal and uniform noise, divided at its middle, have 0.64 and 0.75


class Cycles(NamedTuple):
    """Cycles of steps.

    Attributes:
        ends: Ends of the longest regular ones of which there are `LEAST_CYCLES` whole ones; None where there are none.
        lengths: Steps in each of the longest ones, which may have been seen once, and not whole.
        beat_s: Usual time of the longest ones that were seen whole; None where none was.
        are_any: Whether some steps are slow, of another kind than the others.
    """

    ends: Ends | None
    lengths: Lengths
    beat_s: float | None
    are_any: bool


def cycle_length(lengths: Lengths) -> int | None:
    """Return the number of steps in a cycle; None where it is not known to a percent.

    A window of so many steps holds one stall, wherever it begins.
    """
    if len(lengths) < 2 or lengths.std(ddof=1) > _SURE * math.sqrt(len(lengths)) * lengths.mean():
        return None
    return round(float(lengths.mean()))


def find_cycles(durations_s: Series, units: Series) -> Cycles:
    """Find the cycles of steps.

    Args:
        durations_s: Time of each step.
        units: Work of each step.
    """
    found = list(_rhythms(durations_s, units))
    enough = [ends for ends in found if len(ends) > LEAST_CYCLES and _are_even(np.diff(ends))]
    whole = [_sums(durations_s, ends) for ends in found if len(ends) > 1]
    return Cycles(
        ends=enough[-1] if enough else None,
        lengths=np.diff(found[-1]) if found else np.empty(0, dtype=np.intp),
        beat_s=float(np.median(whole[-1])) if whole else None,
        are_any=bool(found) or _slow(durations_s, units) is not None,
    )


def _are_even(lengths: Lengths) -> bool:
    """Return whether cycles have about as many steps each.

    Where stalls come at random, what lies between them is no unit: to end with one would leave out the long ones.
    """
    return float(lengths.std()) <= _UNEVEN * float(lengths.mean())


def _rhythms(durations_s: Series, units: Series) -> Iterator[Ends]:
    """Yield the ends of cycles of the fastest rhythm, then of slower ones: between two of them lies a whole cycle."""
    ends, least = np.arange(1, len(durations_s) + 1), _LEAST
    while (slow := _slow(durations_s, units)) is not None and len(slow) >= least:
        returns = _returns(slow)
        if not len(returns):
            return
        yield ends[returns]
        durations_s, units = _sums(durations_s, returns + 1), _sums(units, returns + 1)
        ends, least = ends[returns[1:]], _LEAST_TO_COMPARE


def _slow(durations_s: Series, units: Series) -> NDArray[np.bool_] | None:
    """Return which steps are slow; None where they are of one kind.

    The groups are those of ln pace, each step weighted by its time: a stall in a hundred steps counts as what it takes.
    """
    if len(durations_s) < _LEAST:
        return None
    pace = durations_s / units
    groups = two_groups(np.log(pace), durations_s)
    if groups is None or groups.explained < _APART:
        return None
    is_slow = np.zeros(len(pace), dtype=bool)
    is_slow[groups.order[groups.below :]] = True
    return is_slow if pace[is_slow].mean() >= SLOW * pace[~is_slow].mean() else None


def _returns(slow: NDArray[np.bool_]) -> Ends:
    """Return the slow steps after which comes a fast one."""
    return np.flatnonzero(slow[:-1] & ~slow[1:])


def _sums(series: Series, ends: Ends) -> Series:
    """Return the sums between one end and the next."""
    return np.diff(np.concatenate(([0.0], np.cumsum(series)))[ends])


def first_end(durations_s: Series, units: Series) -> int | None:
    """Return the number of steps up to the end of the first stall; None where none has ended."""
    slow = _slow(durations_s, units)
    returns = None if slow is None else _returns(slow)
    return None if returns is None or not len(returns) else int(returns[0]) + 1


def warm_up(durations_s: Series, units: Series) -> int:
    """Return the number of steps at the start that training does not come back to.

    Slow ones after which none is slow for twice the time that has passed; fast ones after which none is fast for four
    times that: of a program that ran ahead of its device, or of batches that were ready before the first step; then
    what MSER-5 would cut of the rest, if no later stretch of as many steps is like it. A stall is like others of its
    kind, and stays.
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
    """Return the relative standard error of the speed: from whole cycles where these are known, else from the steps.

    The error of a ratio is that of the mean of ``duration - pace * work``.

    Args:
        ends: Ends of cycles, from 0 to the number of steps; None where there are none.
    """
    time_s = float(durations_s.sum())
    speed = float(units.sum()) / time_s
    if ends is not None and len(ends) > LEAST_CYCLES:
        durations_s, units = _sums(durations_s, ends), _sums(units, ends)
    elif ends is not None:  # how much cycles differ shows in other trials
        while (slow := _slow(durations_s, units)) is not None:
            durations_s, units = durations_s[~slow], units[~slow]
        speed = float(units.sum() / durations_s.sum())
    left = durations_s - units / speed
    n = len(left)
    return math.sqrt(float(left @ left) / max(1, n - 1) * n * _autocorrelation_time(left)) / time_s


def _autocorrelation_time(series: Series) -> float:
    """Return the integrated autocorrelation time; of short series that of an AR(1) without its bias, if that is more.

    There the correlation of neighbours comes out too small, by ``(1 + 3r) / n`` (Kendall, "Note on bias in the
    estimation of autocorrelation", Biometrika 41, 1954).
    """
    n, squares = len(series), float(series @ series)
    if n < 4 or squares <= 0.0:
        return 1.0
    neighbours = float(series[1:] @ series[:-1]) / squares
    neighbours = min(0.98, max(0.0, neighbours + (1.0 + 3.0 * neighbours) / n))
    time, time_of_short = integrated_autocorrelation_time(series), (1.0 + neighbours) / (1.0 - neighbours)
    return min(n / 2.0, max(time, time_of_short if n < _SHORT * time_of_short else 1.0))
