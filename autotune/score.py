"""From measurements to a verdict: how two runs compare, and whether confirming pairs show a gain.

All comparisons are on natural logarithms, where a ratio is a difference: speed is ``ln(T / T0)`` with ``T`` in
samples per second, the score adds ``w · ln(S / S0)`` with the steadiness ``S = 1 / (1 + cv)``. Utilization does
not appear: within one study ``E = U · (T/U) / r*`` orders points as ``T`` does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.statistics import moderated_interval, student_t_quantile
from autotune.records import Measurement, Ratio

STEADINESS_WEIGHT = 0.25
"""Weight of ln steadiness in the score; 0 for the objective ``throughput``."""

LEAST_SCORE_GAIN = 1.02
"""The score ratio that the whole 95 % interval must exceed: smaller gains are not worth a change of config."""

LEAST_SPEED = 0.98
"""The speed ratio that the whole interval must exceed: steadiness must not be bought with speed."""

LEAST_PAIRS = 4
"""Confirming pairs below which the interval is not to be trusted; pairs come in even numbers (ABBA)."""


def steadiness(cv: float) -> float:
    """1 for steps that all take the same time per unit of work, less for unsteady ones; in (0, 1]."""
    return 1.0 / (1.0 + cv)


def ln_speed(measurement: Measurement, reference: Measurement) -> float:
    """``ln(T / T0)``: the logarithm of how many times faster it is than the reference."""
    return math.log(measurement.speed / reference.speed)


def ln_score(
    measurement: Measurement, reference: Measurement, *, steadiness_weight: float = STEADINESS_WEIGHT
) -> float:
    """The logarithm of the score ratio: speed, and steadiness where both variations are known.

    Args:
        measurement: The run to score.
        reference: The run that scores 0.
        steadiness_weight: 0 for the objective ``throughput``.
    """
    speed = ln_speed(measurement, reference)
    if measurement.cv is None or reference.cv is None:
        return speed  # not known is not unsteady
    return speed + steadiness_weight * math.log(steadiness(measurement.cv) / steadiness(reference.cv))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the confirming pairs show.

    Attributes:
        speed: Candidate's over today's samples per second.
        score: The same for the score.
        better: Whether the gain is shown: score above `LEAST_SCORE_GAIN` and speed above `LEAST_SPEED`, each
            with its whole interval.
        smallest_gain: Smallest true gain in score, e.g. 0.05, that pairs of this number and spread show in half
            of all cases.
        pairs: Number of pairs.
    """

    speed: Ratio
    score: Ratio
    better: bool
    smallest_gain: float
    pairs: int


def judge(
    pairs: Sequence[tuple[Measurement, Measurement]],
    *,
    prior_variance: float,
    prior_df: float,
    steadiness_weight: float = STEADINESS_WEIGHT,
) -> Judgement:
    """Judges a candidate by interleaved pairs with today's config.

    Args:
        pairs: (today, candidate), at least one; runs that chose the candidate must not be among them.
        prior_variance: Variance of one pair's difference of ln speed, from the study's other runs: twice
            that of one run. It serves the score too, which varies with speed but for a fraction of a percent.
        prior_df: Degrees of freedom behind it; 0 if nothing is known.
        steadiness_weight: 0 for the objective ``throughput``.

    Raises:
        ValueError: One pair and no prior: there is no interval.
    """
    speeds = [ln_speed(candidate, today) for today, candidate in pairs]
    scores = [ln_score(candidate, today, steadiness_weight=steadiness_weight) for today, candidate in pairs]
    speed, speed_half = moderated_interval(speeds, prior_variance, prior_df)
    score, score_half = moderated_interval(scores, prior_variance, prior_df)
    speed_ratio = _ratio(speed, speed_half)
    score_ratio = _ratio(score, score_half)
    return Judgement(
        speed=speed_ratio,
        score=score_ratio,
        better=score_ratio.low > LEAST_SCORE_GAIN and speed_ratio.low > LEAST_SPEED,
        smallest_gain=LEAST_SCORE_GAIN * math.exp(score_half) - 1.0,
        pairs=len(pairs),
    )


def _ratio(mean: float, half_width: float) -> Ratio:
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - half_width), high=math.exp(mean + half_width))


def pairs_needed(
    expected_ln_gain: float, pair_sd: float, *, prior_df: float = 0.0, power: float = 0.8, at_most: int = 40
) -> int:
    """How many pairs would probably show an expected gain.

    Args:
        expected_ln_gain: The logarithm of the score ratio that is hoped for.
        pair_sd: Standard deviation of one pair's difference.
        prior_df: Degrees of freedom behind that.
        power: Probability with which the gain is to be shown.
        at_most: The most pairs there is time for.

    Returns:
        An even number, at least `LEAST_PAIRS`; ``at_most`` (rounded down to even) where more would be needed.
    """
    margin = expected_ln_gain - math.log(LEAST_SCORE_GAIN)
    most = max(LEAST_PAIRS, at_most - at_most % 2)
    for pairs in range(LEAST_PAIRS, most, 2):
        df = prior_df + pairs - 1
        # Two quantiles: one for the interval, one for the luck of the draw.
        reach = student_t_quantile(0.975, df) + student_t_quantile(power, df)
        if reach * pair_sd / math.sqrt(pairs) <= margin:
            return pairs
    return most
