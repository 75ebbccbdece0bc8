"""Where the next run pays most: a new point, a promising point once more, or nowhere any more.

No tests are made on the way. Each point has a posterior (its mean, the study's between-run variance over its
number of runs), and every possible run is valued by the gain in the answer that it promises, in ln score:

* a repeat by the knowledge gradient of its point (Frazier, Powell & Dayanik 2008);
* a new point by what new points have gained lately, starting from an optimist's guess.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.search.levels import PointLevel

LARGEST_REPEATS = 6
"""Runs of one point, at most, while searching."""

WORTH_A_RUN = 0.001
"""Expected gain in ln score below which another run no longer pays."""

_OPTIMISM = 0.1  # expected gain of a new point before any is known ...
_OPTIMISM_RUNS = 2.0  # ... worth that many runs
_MEMORY = 0.84  # weight of a run against the next one: half after four
_LARGEST_GAIN = 0.5

_normal = NormalDist()


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What to do next.

    Attributes:
        repeat: The point to measure again; None for a new one.
        gain: What the run promises, in ln score of the answer.
    """

    repeat: PointLevel | None
    gain: float


def allocate(
    levels: Mapping[str, PointLevel],
    today: str,
    sd: float,
    gains: Sequence[float],
    *,
    has_proposal: bool,
    has_advice: bool,
) -> Allocation:
    """Values the possible next runs and takes the best.

    Args:
        levels: What is known of each point.
        today: Name of today's point; it is not repeated here, the confirmation measures it.
        sd: Standard deviation of ln score between runs of one point.
        gains: What each new point so far gained over the best before it, oldest first, 0 if nothing.
        has_proposal: Whether there is a new point to try.
        has_advice: Whether an expert's advice is still untried; then new points keep their first promise.
    """
    explore = new_point_gain(gains) if has_proposal else 0.0
    if has_advice and has_proposal:
        explore = max(explore, _OPTIMISM / 2)
    repeats = [
        Allocation(repeat=level, gain=repeat_gain(level, levels.values(), sd))
        for level in levels.values()
        if level.name != today and level.scores and len(level.scores) + len(level.endings) < LARGEST_REPEATS
    ]
    best = max(repeats, key=lambda choice: choice.gain, default=None)
    if best and best.gain > explore:
        return best
    return Allocation(repeat=None, gain=explore)


def new_point_gain(gains: Sequence[float]) -> float:
    """What the next new point promises: a mean of the gains so far that forgets, pulled up by optimism."""
    weighted, weight = _OPTIMISM * _OPTIMISM_RUNS, _OPTIMISM_RUNS
    for gain in gains:
        weighted = weighted * _MEMORY + min(gain, _LARGEST_GAIN)
        weight = weight * _MEMORY + 1.0
    return weighted / weight


def repeat_gain(level: PointLevel, levels: Iterable[PointLevel], sd: float) -> float:
    """Knowledge gradient of measuring one point once more: how much better the answer is expected to be for it."""
    rivals = [other.mean for other in levels if other.name != level.name and other.scores]
    if not rivals:
        return 0.0
    n = len(level.scores)
    # Standard deviation of the change that one more run makes to the posterior mean.
    change_sd = sd * math.sqrt(1 / n - 1 / (n + 1))
    distance = -abs(level.mean - max(rivals)) / change_sd
    return change_sd * (distance * _normal.cdf(distance) + _normal.pdf(distance))
