"""Statistics of series, such as the times of steps: pure functions with their sources."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
