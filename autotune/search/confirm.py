"""The confirmation: one finalist against today's config, in interleaved pairs, and the time that is kept for it."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.records import TrialRecord
from autotune.sampler.observations import Observation, expected_speed_sd
from autotune.score import LEAST_PAIRS, LEAST_SCORE_GAIN, LEAST_SPEED, pairs_needed
from autotune.search.schedule import CAUTION, MOST_FOR_CONFIRMING, pair_s

MOST_PAIRS = 12
"""A gain that needs more pairs to be seen is not worth their time."""


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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A point that is believed to be better than today's.

    Attributes:
        observation: What its trials showed.
        gain: By how much, in ln score, as far as all trials together tell.
        speed_gain: How much faster its trials were, in ln speed; None where that is not known.
        speed_sd: Standard deviation of ln speed between trials of one point.
    """

    observation: Observation
    gain: float
    speed_gain: float | None
    speed_sd: float


def better_than_today(
    observations: Mapping[str, Observation], believed: Mapping[str, float], today: str
) -> list[Candidate]:
    """The points that are believed to be better than today's, best first; none if today's gave no numbers.

    Args:
        observations: What is known of each point.
        believed: What is believed of those that gave numbers, in ln score.
        today: Name of today's point.
    """
    if today not in believed:
        return []
    todays, speed_sd = observations[today].ln_speeds, expected_speed_sd(observations)

    def candidate(name: str, gain: float) -> Candidate:
        speeds = observations[name].ln_speeds
        speed_gain = fmean(speeds) - fmean(todays) if speeds and todays else None
        return Candidate(observation=observations[name], gain=gain, speed_gain=speed_gain, speed_sd=speed_sd)

    gains = {name: belief - believed[today] for name, belief in believed.items()}
    better = [candidate(name, gain) for name, gain in gains.items() if gain > 0]
    return sorted(better, key=lambda candidate: -candidate.gain)


def pairs_wanted(candidate: Candidate, sd: float, pair_length_s: float, *, budget_s: float) -> int:
    """Return the number of pairs that probably show the expected gain, at a bearable share of the budget.

    And that it is no slower than today's: where the score is not made of speed (`objective: utilization`), or the gain
    is one of steadiness, that may take more pairs.

    Args:
        candidate: What would be confirmed.
        sd: Standard deviation of ln score between trials of one point.
        pair_length_s: How long a pair takes.
        budget_s: The whole budget.
    """
    if candidate.gain <= math.log(LEAST_SCORE_GAIN):
        return LEAST_PAIRS
    fitting = int(MOST_FOR_CONFIRMING * budget_s / pair_length_s)
    most = max(LEAST_PAIRS, min(MOST_PAIRS, fitting))
    pairs = pairs_needed(candidate.gain, math.sqrt(2) * sd, at_most=most)
    if candidate.speed_gain is None:
        return pairs
    pair_sd = math.sqrt(2) * candidate.speed_sd
    return max(pairs, pairs_needed(candidate.speed_gain, pair_sd, least=LEAST_SPEED, at_most=most))


def affordable(
    better: Sequence[Candidate], today: str, trials: Sequence[TrialRecord], *, left_s: float
) -> Candidate | None:
    """The best of these points whose confirmation fits into the time that is left, if need be by a hair.

    Args:
        better: Best first.
        today: Name of today's point.
        trials: Runs of this search; tell how long a pair takes.
        left_s: The time.
    """
    for caution in (CAUTION, 1.0):
        for candidate in better:
            if caution * LEAST_PAIRS * pair_s(trials, today, candidate.observation.name) <= left_s:
                return candidate
    return None
