"""Times of batches: their spread, and whether they come and go in a cycle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.measure.oscillation import period_of
from autotune.statistics import Series

_LEAST_FOR_A_CYCLE = 24  # batches
_LEAST_VARIATION = 0.1  # of times that may be said to go in a cycle
_LEAST_EXPLAINED = 0.3  # of the variance, by the place in the cycle: bursts may peak at some lag by chance
_SHORTEST_PERIOD = 2.0  # batches
_ROUNDED = 0.03  # of the period, as far as it may be off a whole number of batches
_CLIP = 0.98  # quantile above which times count as this one: a single long batch is no cycle


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Cycle in the times of successive batches.

    Attributes:
        batches: Batches in one cycle.
        slow_ms: Mean time of the slowest place in it.
        others_ms: Mean time of the other places.
    """

    batches: float
    slow_ms: float
    others_ms: float


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Spread of the times of batches.

    Attributes:
        batches: Number of batches.
        mean_ms: Mean.
        sd_ms: Standard deviation.
        min_ms: Shortest.
        max_ms: Longest.
        median_ms: Median.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile.
        variation: Standard deviation as a part of the mean; None where that is 0.
        cycle: Cycle that they go in; None if none was found.
    """

    batches: int
    mean_ms: float
    sd_ms: float
    min_ms: float
    max_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    variation: float | None
    cycle: Cycle | None


def batch_times(stretches_s: Sequence[Series]) -> BatchTimes | None:
    """Return the spread of times; None if there are fewer than two.

    Args:
        stretches_s: Times of successive batches in seconds, in stretches between which others came.
    """
    stretches_ms = [1000.0 * stretch for stretch in stretches_s if len(stretch)]
    if sum(len(stretch) for stretch in stretches_ms) < 2:
        return None
    all_ms = np.concatenate(stretches_ms)
    mean_ms, sd_ms = float(all_ms.mean()), float(all_ms.std(ddof=1))
    median_ms, p95_ms, p99_ms = (float(value) for value in np.percentile(all_ms, (50, 95, 99)))
    variation = sd_ms / mean_ms if mean_ms > 0 else None
    return BatchTimes(
        batches=len(all_ms),
        mean_ms=mean_ms,
        sd_ms=sd_ms,
        min_ms=float(all_ms.min()),
        max_ms=float(all_ms.max()),
        median_ms=median_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        variation=variation,
        cycle=_cycle(stretches_ms) if variation is not None and variation >= _LEAST_VARIATION else None,
    )


def _cycle(stretches_ms: Sequence[Series]) -> Cycle | None:
    long_enough = [stretch for stretch in stretches_ms if len(stretch) >= _LEAST_FOR_A_CYCLE]
    if not long_enough:
        return None
    rows = []
    for stretch in long_enough:
        clipped = np.minimum(stretch, max(np.quantile(stretch, _CLIP), 3.0 * np.median(stretch)))
        rows.append(clipped - clipped.mean())
    batches = period_of(rows)
    if batches is None or batches < _SHORTEST_PERIOD - 0.1:
        return None
    longest = int(np.argmax([len(row) for row in rows]))
    if _explained(rows[longest], batches) < _LEAST_EXPLAINED:
        return None
    slow_ms, others_ms = _places(long_enough[longest], batches)
    return Cycle(batches=batches, slow_ms=slow_ms, others_ms=others_ms)


def _place_of(count: int, batches: float) -> NDArray[np.intp]:
    """Return the place of each batch in its cycle."""
    whole = round(batches)  # a period of 8 may be found to be 7.98, and would drift
    exact = whole if abs(batches - whole) <= _ROUNDED * batches else batches
    return np.asarray(np.floor(np.arange(count) % exact), dtype=np.intp)


def _explained(row: Series, batches: float) -> float:
    """Return the share of the variance that a batch's place in its cycle explains, beyond what it does by chance."""
    place = _place_of(len(row), batches)
    means = np.array([row[place == one].mean() for one in range(int(place.max()) + 1)])
    share = float(means[place].var() / row.var())
    by_chance = (len(means) - 1) / (len(row) - 1)
    return (share - by_chance) / (1.0 - by_chance)


def _places(stretch_ms: Series, batches: float) -> tuple[float, float]:
    """Return the mean time of the slowest place in a cycle, and of the others."""
    place = _place_of(len(stretch_ms), batches)
    means = np.array([stretch_ms[place == one].mean() for one in range(int(place.max()) + 1)])
    slowest = int(means.argmax())
    return float(means[slowest]), float(np.delete(means, slowest).mean())
