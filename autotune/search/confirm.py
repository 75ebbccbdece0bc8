"""The confirmation: one finalist against today's config, in interleaved pairs, and the time that is kept for it."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from autotune.records import RunRecord
from autotune.score import LEAST_PAIRS, LEAST_SCORE_GAIN, pairs_needed
from autotune.search.budget import CAUTION, pair_s
from autotune.search.levels import PointLevel, expected_run_sd

MOST_PAIRS = 12
"""A gain that needs more pairs to be seen is not worth their time."""

_MOST_OF_THE_BUDGET = 0.4


def pair_order(pairs: int, rng: random.Random) -> Iterator[tuple[int, bool]]:
    """The order of a confirmation: ABBA, with a randomised start.

    Neighbouring pairs run in opposite order, so that a steady drift of the machine cancels over each two of them.

    Args:
        pairs: Even number of pairs.
        rng: Decides who starts.

    Yields:
        (pair, whether today's config runs now), two for each pair.
    """
    today_first = rng.random() < 0.5
    for pair in range(pairs):
        first = today_first if pair % 2 == 0 else not today_first
        yield pair, first
        yield pair, not first


def better_than_today(levels: Mapping[str, PointLevel], today: str) -> list[PointLevel]:
    """The points that look better than today's, best first; none if today's gave no numbers."""
    start = levels.get(today)
    if start is None or not start.scores:
        return []
    return sorted((level for level in levels.values() if level.mean > start.mean), key=lambda one: -one.mean)


def pairs_wanted(levels: Mapping[str, PointLevel], today: str, runs: Sequence[RunRecord], *, budget_s: float) -> int:
    """How many pairs would probably show the gain that is expected now, at a bearable share of the budget.

    Args:
        levels: What is known of each point.
        today: Name of today's point.
        runs: Runs of this search; tell how long a pair takes.
        budget_s: The whole budget.
    """
    better = better_than_today(levels, today)
    if not better:
        return LEAST_PAIRS
    gain = better[0].mean - levels[today].mean
    if gain <= math.log(LEAST_SCORE_GAIN):
        return LEAST_PAIRS
    fitting = int(_MOST_OF_THE_BUDGET * budget_s / pair_s(runs, today, better[0].name))
    most = max(LEAST_PAIRS, min(MOST_PAIRS, fitting))
    return pairs_needed(gain, math.sqrt(2) * expected_run_sd(levels), at_most=most)


def reserved_s(levels: Mapping[str, PointLevel], today: str, runs: Sequence[RunRecord], *, budget_s: float) -> float:
    """How much of the budget has to be left for the confirmation of what is best now."""
    better = better_than_today(levels, today)
    candidate = better[0].name if better else None
    return CAUTION * pairs_wanted(levels, today, runs, budget_s=budget_s) * pair_s(runs, today, candidate)


def affordable(
    better: Sequence[PointLevel], today: str, runs: Sequence[RunRecord], *, left_s: float
) -> PointLevel | None:
    """The best of these points whose confirmation fits into the time that is left, if need be by a hair."""
    for caution in (CAUTION, 1.0):
        for level in better:
            if caution * LEAST_PAIRS * pair_s(runs, today, level.name) <= left_s:
                return level
    return None
