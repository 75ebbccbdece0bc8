"""Robust trend of a series: slope and monotonicity."""

import math
from typing import NamedTuple

import numpy as np

from autotune.measure.cycles import Series


class Trend(NamedTuple):
    """Slope with its 95 % interval, and Kendall's tau, -1..1."""

    slope: float
    low: float
    high: float
    concordance: float


def trend(times: Series, values: Series) -> Trend:
    """Return the median of the slopes between all pairs of points, and Kendall's tau.

    Up to a quarter of the points may be outliers (P. K. Sen, "Estimates of the regression coefficient based on
    Kendall's tau", J. Am. Stat. Assoc. 63, 1968).

    Args:
        times: Shape (n_points,), ascending; at least four.
        values: Shape (n_points,).
    """
    before, after = np.triu_indices(len(times), 1)
    slopes = np.sort((values[after] - values[before]) / (times[after] - times[before]))
    points = len(times)
    margin = 1.96 * math.sqrt(points * (points - 1) * (2 * points + 5) / 18.0)
    low, high = (int((len(slopes) + side * margin) / 2.0) for side in (-1.0, 1.0))
    return Trend(
        slope=float(np.median(slopes)),
        low=float(slopes[max(0, low)]),
        high=float(slopes[min(len(slopes) - 1, high)]),
        concordance=float(np.mean(np.sign(slopes))),
    )
