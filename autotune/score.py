"""From measurements to a verdict: how two trials compare, and whether confirming pairs show a gain.

All comparisons are on natural logarithms, where a ratio is a difference: speed is ``ln(T / T0)`` with ``T`` in
samples per second, the score adds ``w · ln(S / S0)`` with the steadiness ``S = 1 / (1 + cv)``. Utilization does
not appear: within one study ``E = U · (T/U) / r*`` orders points as ``T`` does. Only the objective ``utilization``
looks for it: there the score is ``ln(U / U0)``, among points no slower than today's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from autotune.records import Measurement
from autotune.results import Ratio
from autotune.statistics import moderated_interval, student_t_quantile

STEADINESS_WEIGHT = 0.25
"""Weight of ln steadiness in the score; 0 for the objective ``throughput``."""

LEAST_SCORE_GAIN = 1.02
"""The score ratio that the whole 95 % interval must exceed: smaller gains are not worth a change of config."""

LEAST_SPEED = 0.98
"""The speed ratio that the whole interval must exceed: nothing else must be bought with speed."""

LEAST_PAIRS = 4
"""Confirming pairs below which the interval is not to be trusted; pairs come in even numbers (ABBA)."""

_LEAST_UTILIZATION = 0.01  # the driver counts in whole percent: below one, all are alike


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a search looks for: how its trials are scored.

    Attributes:
        name: As the config says it, and as records keep it.
        measures: What the score is made of, for people.
        steadiness_weight: Weight of ln steadiness, where the score is made of speed.
        by_utilization: Whether the score is the GPU's utilization, not speed.
    """

    name: str
    measures: str
    steadiness_weight: float = 0.0
    by_utilization: bool = False

    def is_told_by(self, measurement: Measurement) -> bool:
        """Whether a trial's numbers hold what is looked for: without a utilization it has none, and not 0."""
        return not self.by_utilization or measurement.gpu_utilization is not None

    def penalty(self, lead: float, ln_speed: float) -> float:
        """What the score of a point loses for being slower than today's, where that is not in the score anyway.

        Such a point counts as no better than today's, and as less by as much as it is slower. So what is busy for being
        slow never wins, and the search still learns which way speed lies.

        Args:
            lead: Its mean ln score less today's.
            ln_speed: Its mean ln speed less today's.

        Returns:
            At least 0, to be subtracted from its ln score.
        """
        slower = math.log(LEAST_SPEED) - ln_speed
        return max(0.0, lead) + slower if self.by_utilization and slower > 0.0 else 0.0


EFFECTIVE_UTILIZATION = Objective(
    name="effective_utilization", measures="throughput and steadiness", steadiness_weight=STEADINESS_WEIGHT
)
THROUGHPUT = Objective(name="throughput", measures="throughput")
UTILIZATION = Objective(
    name="utilization", measures="GPU utilization, among points no slower than today's", by_utilization=True
)

OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {objective.name: objective for objective in (EFFECTIVE_UTILIZATION, UTILIZATION, THROUGHPUT)}
)
"""What a config may ask for, by name."""


def steadiness(cv: float) -> float:
    """1 for steps that all take the same time per unit of work, less for unsteady ones; in (0, 1]."""
    return 1.0 / (1.0 + cv)


def ln_speed(measurement: Measurement, reference: Measurement) -> float:
    """``ln(T / T0)``: the logarithm of how many times faster it is than the reference."""
    return math.log(measurement.speed / reference.speed)


def ln_score(measurement: Measurement, reference: Measurement, objective: Objective = EFFECTIVE_UTILIZATION) -> float:
    """The logarithm of the score ratio: speed, and steadiness where both variations are known; or utilization.

    Args:
        measurement: The trial to score.
        reference: The trial that scores 0.
        objective: What is looked for; both trials must tell it (`Objective.is_told_by`).
    """
    if objective.by_utilization:
        return _ln_utilization(measurement) - _ln_utilization(reference)
    speed = ln_speed(measurement, reference)
    if measurement.cv is None or reference.cv is None:
        return speed  # not known is not unsteady
    return speed + objective.steadiness_weight * math.log(steadiness(measurement.cv) / steadiness(reference.cv))


def _ln_utilization(measurement: Measurement) -> float:
    assert measurement.gpu_utilization is not None, "a trial without utilization has no score by it"
    return math.log(max(_LEAST_UTILIZATION, measurement.gpu_utilization))


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
    speed_prior: tuple[float, float] | None = None,
    objective: Objective = EFFECTIVE_UTILIZATION,
) -> Judgement:
    """Judges a candidate by interleaved pairs with today's config.

    Where caches were still being filled, speeds are estimates without the time that steps waited for data: the most
    that full caches can make of a config. As measured, a config is as slow as it will ever be. What full caches really
    make of it lies between the two and is not known, so the intervals reach from the candidate as measured against
    today's estimate to the candidate's estimate against today's as measured.

    Args:
        pairs: (today, candidate), at least one; runs that chose the candidate must not be among them.
        prior_variance: Variance of one pair's difference of ln score, from the study's other trials: twice that of one
            run. It serves the speed too, from which a score made of it differs by a fraction of a percent.
        prior_df: Degrees of freedom behind it; 0 if nothing is known.
        speed_prior: Variance and degrees of freedom for ln speed, where the score is not made of it.
        objective: What is looked for; all trials must tell it.

    Raises:
        ValueError: One pair and no prior: there is no interval.
    """
    speeds = [ln_speed(candidate, today) for today, candidate in pairs]
    scores = [ln_score(candidate, today, objective) for today, candidate in pairs]
    estimated = [(_ln_estimated(today), _ln_estimated(candidate)) for today, candidate in pairs]
    speed_ratio = _ratio(speeds, estimated, speed_prior or (prior_variance, prior_df))
    measured = [(0.0, 0.0)] * len(pairs)  # a utilization is no estimate
    score_ratio = _ratio(scores, measured if objective.by_utilization else estimated, (prior_variance, prior_df))
    return Judgement(
        speed=speed_ratio,
        score=score_ratio,
        better=score_ratio.low > LEAST_SCORE_GAIN and speed_ratio.low > LEAST_SPEED,
        smallest_gain=LEAST_SCORE_GAIN * score_ratio.ratio / score_ratio.low - 1.0,
        pairs=len(pairs),
    )


def _ratio(ln_ratios: Sequence[float], estimated: Sequence[tuple[float, float]], prior: tuple[float, float]) -> Ratio:
    """Return the ratio that some pairs show, with its interval.

    Args:
        ln_ratios: The logarithm of what each pair shows.
        estimated: How much of today's and of the candidate's number in it is an estimate, as logarithms.
        prior: Variance of a pair's difference as known from before, and the degrees of freedom behind it.
    """
    mean, _ = moderated_interval(ln_ratios, *prior)
    lows = [value - candidate for value, (_, candidate) in zip(ln_ratios, estimated, strict=True)]
    highs = [value + today for value, (today, _) in zip(ln_ratios, estimated, strict=True)]
    lowest, below = moderated_interval(lows, *prior)
    highest, above = moderated_interval(highs, *prior)
    return Ratio(ratio=math.exp(mean), low=math.exp(lowest - below), high=math.exp(highest + above))


def _ln_estimated(measurement: Measurement) -> float:
    """How much of a trial's speed is an estimate, as a logarithm: 0 unless its caches were being filled."""
    return math.log(measurement.speed / measurement.samples_per_s)


def pairs_needed(
    expected_ln_gain: float,
    pair_sd: float,
    *,
    least: float = LEAST_SCORE_GAIN,
    prior_df: float = 0.0,
    power: float = 0.8,
    at_most: int = 40,
) -> int:
    """How many pairs would probably show an expected gain.

    Args:
        expected_ln_gain: The logarithm of the ratio that is hoped for.
        pair_sd: Standard deviation of one pair's difference.
        least: The ratio that the whole interval has to be above.
        prior_df: Degrees of freedom behind that.
        power: Probability with which the gain is to be shown.
        at_most: The most pairs there is time for.

    Returns:
        An even number, at least `LEAST_PAIRS`; ``at_most`` (rounded down to even) where more would be needed.
    """
    margin = expected_ln_gain - math.log(least)
    most = max(LEAST_PAIRS, at_most - at_most % 2)
    for pairs in range(LEAST_PAIRS, most, 2):
        df = prior_df + pairs - 1
        # Two quantiles: one for the interval, one for the luck of the draw.
        reach = student_t_quantile(0.975, df) + student_t_quantile(power, df)
        if reach * pair_sd / math.sqrt(pairs) <= margin:
            return pairs
    return most
