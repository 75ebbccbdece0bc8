"""Contrasts: the speed of one point over that of others, measured or not, from all trials of a search.

The model is the Gaussian process of the search (`autotune.sampler.gaussian_process`), without an expert's advice. So
where both points were measured often, their own trials decide, and else those of points like them.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median_high

import numpy as np

from autotune.records import Values
from autotune.results import Ratio
from autotune.sampler.gaussian_process import GaussianProcess, Indices, TrainingData
from autotune.space.space import Space
from autotune.statistics import SLOW_OUTLIER_FLOOR

_LARGEST_FIT = 300  # points in the model: those most like the point in question
_FITS = 3  # each continues to fit the hyperparameters from where the last one stopped
# Factors on the model's standard deviation, which leaves out the error of the model itself: where the other point was
# never measured, and where its own trials speak. On simulated trainers, changed ones included, the intervals hold the
# truth in 91 % and 98 % then.
_MODEL_ERROR_FACTOR = 1.5
_OWN_TRIALS_FACTOR = 1.1
_SURE = 1.96  # standard deviations to either side: 95 %


def speed_ratios(
    trials: Sequence[tuple[Values, float]], point: Values, others: Sequence[Values], space: Space, *, sd: float
) -> list[Ratio]:
    """Return the speed of a point over that of each of some others.

    The same trials always give the same ratios.

    Args:
        trials: Values and ln speed of each trial, at least one; all of them points of the space.
        point: The point.
        others: The others, each different from it.
        space: The search space.
        sd: Standard deviation of ln speed between trials of one point, above 0.
    """
    speeds: dict[tuple[int, ...], list[float]] = {}
    for values, speed in trials:
        speeds.setdefault(space.indices(values), []).append(speed)
    speeds = {row: _undisturbed(of_point) for row, of_point in speeds.items()}
    here = np.array(space.indices(point))
    rows = [space.indices(other) for other in others]
    near = sorted(speeds, key=lambda row: (row not in rows, np.count_nonzero(here != row)))[:_LARGEST_FIT]
    data = TrainingData(
        points=np.array(near),
        scores=np.array([fmean(speeds[row]) for row in near]),
        variances=np.array([sd**2 / len(speeds[row]) for row in near]),
    )
    model = GaussianProcess(space)
    for _ in range(_FITS):
        model.fit(data)
    factors = [_OWN_TRIALS_FACTOR if row in near else _MODEL_ERROR_FACTOR for row in rows]
    return [_ratio(model, np.array([here, row]), factor) for row, factor in zip(rows, factors, strict=True)]


def _undisturbed(speeds: Sequence[float]) -> list[float]:
    """Return the ln speeds of a point's trials but those that something has slowed down."""
    usual = median_high(speeds)
    return [speed for speed in speeds if speed >= usual - SLOW_OUTLIER_FLOOR]


def _ratio(model: GaussianProcess, points: Indices, factor: float) -> Ratio:
    """Return the speed of the first of two points over that of the second."""
    first, second = model.predict(points).mean
    (own, shared), (_, other) = model.covariance(points)
    mean = float(first - second)
    margin = _SURE * factor * math.sqrt(max(0.0, float(own - 2 * shared + other)))
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - margin), high=math.exp(mean + margin))
