"""Score of trials, and judgement of confirming pairs.

Speed is ``ln(T / T0)`` with ``T`` in samples per second. The score adds ``w · (ln(S / S0) + ln(U / U0))``, at most
`MOST_FOR_STEADINESS`, with the steadiness of steps ``S = 1 / (1 + cv)`` and the GPU's utilization ``U``, to order
points of indistinguishable speed. The objective ``utilization`` has the score ``ln(U / U0)``, among points no slower
than the baseline.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from autotune.measure.statistics import TYPICAL_CV, lacks_cycles, student_t_quantile, winsorized
from autotune.records import Measurement, Ratio

STEADINESS_WEIGHT = 0.03
"""Weight of ln steadiness and ln utilization in the score; 0 for the objective ``throughput``."""

MOST_FOR_STEADINESS = 0.03
"""Limit on the sum of these two in the score: trials of one point differ by as much."""

LEAST_SCORE_GAIN = 1.02
"""Score ratio that the whole 95 % interval must exceed."""

LEAST_SPEED = 0.98
"""Speed ratio that the whole interval must exceed."""

LEAST_STEADIER = 1.1
"""Ratio of steadiness or utilization that the whole interval must exceed to justify a change alone."""

_OF_A_CLASS_SD = 0.02  # of the ln ratio of two points, between machines of a class
_NO_LESS = 0.95  # least ratio of both steadiness and utilization
_STEADINESS_SD = 0.05  # prior of ln steadiness and ln utilization between trials, with two degrees of freedom

LEAST_PAIRS = 4
"""Fewest confirming pairs that can reject a gain; pairs come in even numbers (ABBA)."""

FEWEST_PAIRS = 2
"""Fewest pairs of a sequential confirmation: they can confirm a large gain, and reject none."""

_CONFIDENCE = 0.95
# Of a sequential confirmation, whose intervals jointly hold the true ratio in at least 95 % (Jennison & Turnbull,
# "Repeated confidence intervals", J. R. Statist. Soc. B 51, 1989); `python -m scripts.bench confirmation` checks it.
_CONFIDENCE_OF_FEWEST = 0.99
_CONFIDENCE_BEFORE_LAST = 0.985
_CONFIDENCE_AT_LAST = 0.965


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Objective of a search, which defines its score.

    Attributes:
        measures: Description of the score, for users.
        steadiness_weight: Weight of ln steadiness and ln utilization.
        by_utilization: Whether the score is the GPU's utilization instead of speed.
    """

    name: str
    measures: str
    steadiness_weight: float = 0.0
    by_utilization: bool = False

    def can_score(self, measurement: Measurement) -> bool:
        """Return whether a measurement has what the objective needs."""
        return not self.by_utilization or measurement.gpu_utilization is not None

    def penalty(self, lead: float, ln_speed: float) -> float:
        """Return the amount to subtract from the ln score of a point slower than the baseline; 0 if speed is the score.

        The point then scores below the baseline by as much as it is slower.

        Args:
            lead: Mean ln score relative to the baseline's.
            ln_speed: Mean ln speed relative to the baseline's.
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

OBJECTIVES: Mapping[str, Objective] = {one.name: one for one in (EFFECTIVE_UTILIZATION, UTILIZATION, THROUGHPUT)}
"""Objectives by their names in the config."""


def steadiness(cv: float) -> float:
    """Return ``1 / (1 + cv)``, in (0, 1]; 1 for equal times per unit of work."""
    return 1.0 / (1.0 + cv)


def ln_speed(measurement: Measurement, reference: Measurement) -> float:
    """Return ``ln(T / T0)`` of two measurements."""
    return math.log(measurement.speed / reference.speed)


def ln_score(measurement: Measurement, reference: Measurement, objective: Objective = EFFECTIVE_UTILIZATION) -> float:
    """Return the ln score ratio of two measurements that the objective can score.

    Steadiness and utilization count if both have them.
    """
    if objective.by_utilization:
        one, other = _ln_utilization(measurement), _ln_utilization(reference)
        assert one is not None, "a trial without utilization has no score"
        assert other is not None, "a reference without utilization gives no score"
        return one - other
    known = [(ln(measurement), ln(reference)) for ln in (_ln_steadiness, _ln_utilization)]
    steadier = sum(one - other for one, other in known if one is not None and other is not None)
    added = objective.steadiness_weight * steadier
    return ln_speed(measurement, reference) + max(-MOST_FOR_STEADINESS, min(MOST_FOR_STEADINESS, added))


def _ln_steadiness(measurement: Measurement) -> float | None:
    return None if measurement.cv is None else math.log(steadiness(measurement.cv))


def _ln_utilization(measurement: Measurement) -> float | None:
    # the driver reports whole percents, so values below one are equal
    return None if measurement.gpu_utilization is None else math.log(max(0.01, measurement.gpu_utilization))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Result of the confirming pairs, as ratios of the candidate to the baseline.

    Attributes:
        steadiness, utilization: None if unknown, or not in the objective.
        standard_error: Of the ln score ratio.
        of_machines: Judgement of each machine's pairs; empty if there is one machine.
        confidence: Confidence level of the intervals, the lowest of the machines'.
    """

    speed: Ratio
    score: Ratio
    pairs: int
    steadiness: Ratio | None = None
    utilization: Ratio | None = None
    standard_error: float = 0.0
    df: float = math.inf
    of_machines: tuple["Judgement", ...] = ()
    confidence: float = _CONFIDENCE

    @property
    def better(self) -> bool:
        return self.score.low > LEAST_SCORE_GAIN and self.speed.low > LEAST_SPEED

    @property
    def smallest_gain(self) -> float:
        """True gain in score, e.g. 0.05, that such pairs detect with probability 1/2."""
        return LEAST_SCORE_GAIN * self.score.ratio / self.score.low - 1.0

    @property
    def steadier(self) -> bool:
        """Whether it is confirmed as fast, with steadier steps or a busier GPU, and neither of them worse."""
        return not self.better and self.speed.low > LEAST_SPEED and self._is_steadier(lambda ratio: ratio.low)

    @property
    def wins(self) -> bool:
        return self.better or self.steadier

    @property
    def is_conclusive(self) -> bool:
        return self.wins or self.pairs >= LEAST_PAIRS

    @property
    def may_be_steadier(self) -> bool:
        return self.speed.ratio > LEAST_SPEED and self._is_steadier(lambda ratio: ratio.ratio)

    def widened(self, sd: float) -> "Judgement":
        """Return a judgement with wider intervals, for an error of ln speed that its pairs share."""
        if not sd:
            return self
        z = student_t_quantile(0.5 + _CONFIDENCE / 2.0, math.inf)
        return replace(
            self,
            speed=_widened(self.speed, z * sd),
            score=_widened(self.score, z * sd),
            standard_error=math.hypot(self.standard_error, sd),
        )

    def _is_steadier(self, end: Callable[[Ratio], float]) -> bool:
        known = [ratio for ratio in (self.steadiness, self.utilization) if ratio is not None]
        return any(end(ratio) > LEAST_STEADIER for ratio in known) and all(ratio.ratio > _NO_LESS for ratio in known)

    def is_futile(self, planned_pairs: int) -> bool:
        """Return whether the rest of the planned pairs is unlikely to confirm a gain."""
        if self.of_machines:  # jointly they may confirm what one alone does not
            return all(one.is_futile(planned_pairs) for one in self.of_machines)
        if self.pairs >= planned_pairs:
            return not self.better
        share = self.pairs / planned_pairs
        last_df = self.df + planned_pairs - self.pairs
        reach = student_t_quantile(0.5 + _CONFIDENCE_AT_LAST / 2.0, last_df) * math.sqrt(share)
        # probability that further pairs would still confirm the gain
        luck = student_t_quantile(1.0 - 0.01, self.df) * math.sqrt(1.0 - share)
        return math.log(self.score.ratio) + (luck - reach) * self.standard_error < math.log(LEAST_SCORE_GAIN)


def _widened(ratio: Ratio, half_width: float) -> Ratio:
    low, high = (math.hypot(math.log(end / ratio.ratio), half_width) for end in (ratio.low, ratio.high))
    return Ratio(ratio=ratio.ratio, low=ratio.ratio * math.exp(-low), high=ratio.ratio * math.exp(high))


def confidence_of(pairs: int, planned_pairs: int | None) -> float:
    """Return the confidence level of the interval after some pairs.

    Args:
        planned_pairs: Most pairs of a sequential confirmation, which stops at the first confirming interval; None for a
            fixed number.
    """
    if planned_pairs is None:
        return _CONFIDENCE
    if pairs < LEAST_PAIRS:
        return _CONFIDENCE_OF_FEWEST
    return _CONFIDENCE_AT_LAST if pairs >= planned_pairs else _CONFIDENCE_BEFORE_LAST


def judge(
    pairs: Sequence[tuple[Measurement, Measurement]],
    *,
    prior_variance: float,
    prior_df: float,
    speed_prior: tuple[float, float] | None = None,
    objective: Objective = EFFECTIVE_UTILIZATION,
    planned_pairs: int | None = None,
) -> Judgement:
    """Judge a candidate by pairs of trials interleaved with the baseline.

    All pairs count: to drop slow ones would select on the outcome. The ratio is that of mean times per sample, with
    trials weighted by their known errors. The prior variance is at least that from the number of stalls per trial,
    which the steps of all pairs show much better than a few trials. Outliers beyond that are winsorized.

    While caches are being filled, the measured speed is a lower bound on that with full caches, and the speed without
    waiting for data an upper bound. The intervals reach from the measured candidate over the estimated baseline to the
    estimated candidate over the measured baseline.

    Args:
        pairs: (baseline, candidate), at least one; without trials that selected the candidate.
        prior_variance: Variance of one pair's difference of ln score, twice that of one trial, from other trials.
        prior_df: Degrees of freedom of `prior_variance`; 0 if nothing is known.
        speed_prior: Variance and degrees of freedom for ln speed, if the score is not made of it.
        planned_pairs: As in `confidence_of`.

    Raises:
        ValueError: One pair and no prior: there is no interval.
    """
    confidence = confidence_of(len(pairs), planned_pairs)
    speeds = [ln_speed(candidate, baseline) for baseline, candidate in pairs]
    # Steadiness only orders points of equal speed: it is judged separately.
    scores = speeds
    if objective.by_utilization:
        scores = [ln_score(candidate, baseline, objective) for baseline, candidate in pairs]
    estimated = [(_ln_estimated(baseline), _ln_estimated(candidate)) for baseline, candidate in pairs]
    ln_ratio, of_speed = _seen_in_steps(pairs, speed_prior or (prior_variance, prior_df))
    prior = (prior_variance, prior_df) if objective.by_utilization else of_speed
    beyond = 0.0 if winsorized(speeds, of_speed[0]).pulled else ln_ratio - fmean(speeds)
    speed_ratio = score_ratio = _ratio(speeds, estimated, of_speed, confidence, beyond, _half_width_of_cycles(pairs))
    if objective.by_utilization:
        score_ratio = _ratio(scores, [(0.0, 0.0)] * len(pairs), prior, confidence)  # utilization is not estimated
    shown = winsorized(scores, prior[0])
    df = prior[1] + len(shown.values) - shown.pulled - 1
    _, half_width = shown.interval(prior, confidence)
    return Judgement(
        speed=speed_ratio,
        score=score_ratio,
        pairs=len(pairs),
        steadiness=_ratio_of(pairs, _ln_steadiness, confidence) if objective.steadiness_weight else None,
        utilization=_ratio_of(pairs, _ln_utilization, confidence) if objective.steadiness_weight else None,
        standard_error=half_width / student_t_quantile(0.5 + confidence / 2.0, df),
        df=df,
        confidence=confidence,
    )


def _seen_in_steps(
    pairs: Sequence[tuple[Measurement, Measurement]], prior: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Return the ln speed ratio, and the prior of a pair's difference with the variance from stalls."""
    # without repeats, assume the usual spread of trials
    between = prior[0] / 2.0 if prior[1] else TYPICAL_CV**2
    (baseline, first), (candidate, second) = (_weighted_pace(side, between) for side in zip(*pairs, strict=True))
    # The variance of a sum over rare events is known about as well as from half as many normal observations.
    stalls = sum(0 if one.cycles is None else one.cycles + 1 for pair in pairs for one in pair)
    variance, others = len(pairs) * (first + second), 2.0 * between
    if stalls and variance > others:
        prior = variance + (0.0 if prior[1] else others), max(prior[1], stalls / 2.0)
    return math.log(baseline / candidate), prior


def _weighted_pace(trials: Sequence[Measurement], between: float) -> tuple[float, float]:
    """Return the mean time per sample over some trials, and the relative variance that stalls add.

    Args:
        between: Variance of ln speed between trials without stalls.
    """
    work, time_s = [one.speed * one.window_s for one in trials], math.fsum(one.window_s for one in trials)
    # a trial's variance falls with its work, not with its time, which more stalls make longer
    in_all = math.fsum((one.speed_error * one.window_s) ** 2 for one in trials) / time_s**2
    of_stalls = [in_all * math.fsum(work) / one for one in work]
    weights = [1.0 / (between + one) for one in of_stalls]
    pace = math.fsum(weight / one.speed for weight, one in zip(weights, trials, strict=True)) / math.fsum(weights)
    added = math.fsum(weight**2 * one for weight, one in zip(weights, of_stalls, strict=True)) / math.fsum(weights) ** 2
    return pace, added


def on_all_machines(judgements: Sequence[Judgement]) -> Judgement:
    """Combine the judgements of machines of one class.

    If they agree within noise, ratios are pooled by the widths of their intervals and the variance within a class
    (random effects of known variance; DerSimonian and Laird, "Meta-analysis in clinical trials", Controlled Clinical
    Trials 7, 1986). Otherwise the interval spans theirs, so a gain must be confirmed on every machine (an
    intersection-union test; Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24,
    1982).
    """
    if len(judgements) == 1:
        return judgements[0]
    scores = [judgement.score for judgement in judgements]
    unite = _pooled if _agree(scores) else _on_each
    speed, score = unite([judgement.speed for judgement in judgements]), unite(scores)
    steadiness = [one.steadiness for one in judgements if one.steadiness]
    utilization = [one.utilization for one in judgements if one.utilization]
    return Judgement(
        speed=speed,
        score=score,
        pairs=sum(judgement.pairs for judgement in judgements),
        steadiness=unite(steadiness) if len(steadiness) == len(judgements) else None,
        utilization=unite(utilization) if len(utilization) == len(judgements) else None,
        standard_error=max(judgement.standard_error for judgement in judgements),
        df=min(judgement.df for judgement in judgements),
        of_machines=tuple(judgements),
        confidence=min(judgement.confidence for judgement in judgements),
    )


def _agree(ratios: Sequence[Ratio]) -> bool:
    """Return whether Cochran's Q of some machines is within two standard deviations."""
    pooled, freedom = math.log(_pooled(ratios).ratio), len(ratios) - 1
    q = math.fsum(4.0 * _weight(ratio) * (math.log(ratio.ratio) - pooled) ** 2 for ratio in ratios)
    return q <= freedom + 2.0 * math.sqrt(2.0 * freedom)


def _pooled(ratios: Sequence[Ratio]) -> Ratio:
    weights = [_weight(ratio) for ratio in ratios]
    total = sum(weights)
    mean = math.fsum(weight * math.log(ratio.ratio) for weight, ratio in zip(weights, ratios, strict=True)) / total
    half_width = 1.0 / math.sqrt(total)
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - half_width), high=math.exp(mean + half_width))


def _weight(ratio: Ratio) -> float:
    """Return a machine's inverse variance, in terms of half-widths, with the spread within a class."""
    return 1.0 / ((math.log(ratio.high / ratio.low) / 2.0) ** 2 + (2.0 * _OF_A_CLASS_SD) ** 2)


def _on_each(ratios: Sequence[Ratio]) -> Ratio:
    mean = math.exp(math.fsum(math.log(ratio.ratio) for ratio in ratios) / len(ratios))
    return Ratio(ratio=mean, low=min(ratio.low for ratio in ratios), high=max(ratio.high for ratio in ratios))


def _ratio(
    ln_ratios: Sequence[float],
    estimated: Sequence[tuple[float, float]],
    prior: tuple[float, float],
    confidence: float,
    beyond: float = 0.0,
    unseen: float = 0.0,
) -> Ratio:
    """Return the ratio over some pairs, with its interval.

    Args:
        estimated: ln of the estimated share of the baseline's and the candidate's speed, of each pair.
        prior: Variance of a pair's difference, and degrees of freedom.
        beyond: ln ratio over all of the time, less the mean of the pairs.
        unseen: Half-width of an error that further pairs would not reveal.
    """
    mean, _ = winsorized(ln_ratios, prior[0]).interval(prior, confidence)
    lows = [value - candidate for value, (_, candidate) in zip(ln_ratios, estimated, strict=True)]
    highs = [value + baseline for value, (baseline, _) in zip(ln_ratios, estimated, strict=True)]
    lowest, below = winsorized(lows, prior[0]).interval(prior, confidence)
    highest, above = winsorized(highs, prior[0]).interval(prior, confidence)
    return Ratio(
        ratio=math.exp(mean + beyond),
        low=math.exp(lowest + beyond - math.hypot(below, unseen)),
        high=math.exp(highest + beyond + math.hypot(above, unseen)),
    )


def _ratio_of(
    pairs: Sequence[tuple[Measurement, Measurement]], ln: Callable[[Measurement], float | None], confidence: float
) -> Ratio | None:
    """Return the ratio of a quantity other than speed; None if a trial lacks it."""
    known = [(ln(baseline), ln(candidate)) for baseline, candidate in pairs]
    differences = [other - one for one, other in known if one is not None and other is not None]
    if len(differences) < len(pairs):
        return None
    return _ratio(differences, [(0.0, 0.0)] * len(pairs), (2.0 * _STEADINESS_SD**2, 2.0), confidence)


def _half_width_of_cycles(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    """Return the ln half-width of the error of trials with too few whole cycles.

    They all begin at the same place of a cycle, so pairs share the error.
    """
    errors = [
        [one.speed_error if lacks_cycles(one.cycles, one.speed_error) else 0.0 for one in side]
        for side in zip(*pairs, strict=True)
    ]
    return 2.0 * math.sqrt(sum(median(side) ** 2 for side in errors))


def _ln_estimated(measurement: Measurement) -> float:
    """Return the ln of the estimated over the measured speed: 0 unless caches were being filled."""
    return math.log(measurement.speed / measurement.samples_per_s)


def pairs_needed(
    expected_ln_gain: float,
    pair_sd: float,
    *,
    least: float = LEAST_SCORE_GAIN,
    prior_df: float = 0.0,
    power: float = 0.8,
    at_most: int = 40,
    sequential: bool = False,
) -> int:
    """Return the even number of pairs, at most ``at_most``, that will probably confirm an expected gain.

    Args:
        pair_sd: Standard deviation of one pair's difference, with `prior_df` degrees of freedom.
        least: Ratio that the whole interval must exceed.
        power: Probability of confirming the gain, 0..1.
        sequential: Whether the confirmation may stop after `FEWEST_PAIRS`.
    """
    margin = expected_ln_gain - math.log(least)
    most = max(LEAST_PAIRS, at_most - at_most % 2)
    for pairs in range(FEWEST_PAIRS if sequential else LEAST_PAIRS, most, 2):
        df = prior_df + pairs - 1
        confidence = confidence_of(pairs, pairs if sequential else None)
        # Two quantiles: one for the interval, one for the power.
        reach = student_t_quantile(0.5 + confidence / 2.0, df) + student_t_quantile(power, df)
        if reach * pair_sd / math.sqrt(pairs) <= margin:
            return pairs
    return most
