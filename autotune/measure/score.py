"""Score: comparison of two trials, and the judgement of confirming pairs.

All comparisons are on natural logarithms, where a ratio is a difference: speed is ``ln(T / T0)`` with ``T`` in
samples per second. The score adds ``w · (ln(S / S0) + ln(U / U0))``, at most `MOST_FOR_STEADINESS`, with ``S = 1 / (1 +
cv)``, the steadiness of the steps, and ``U``, the GPU's utilization: it orders points whose speed cannot be told apart,
and never makes up for speed. Only the objective ``utilization`` maximizes ``U``: there the score is ``ln(U / U0)``,
among points no slower than the baseline.
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
"""Most that these two can add to ln speed, or take from it: what trials of one point differ by in any case."""

LEAST_SCORE_GAIN = 1.02
"""The score ratio that the whole 95 % interval must exceed: smaller gains are not worth a change of config."""

LEAST_SPEED = 0.98
"""The speed ratio that the whole interval must exceed: no gain may cost speed."""

LEAST_STEADIER = 1.1
"""The ratio of steadiness, or of utilization, that the whole interval must exceed to be worth a change by itself."""

_OF_A_CLASS_SD = 0.02  # of the ln ratio of two points, between machines of a class
_NO_LESS = 0.95  # what the other of the two has to keep
_STEADINESS_SD = 0.05  # prior of ln steadiness and ln utilization between trials; counts as two degrees of freedom

LEAST_PAIRS = 4
"""Least number of confirming pairs that can deny a gain; pairs come in even numbers (ABBA)."""

FEWEST_PAIRS = 2
"""Least number of pairs that a sequential confirmation may stop after: they can show a large gain, and deny none."""

_CONFIDENCE = 0.95
# Of a sequential confirmation, whose intervals together hold the true ratio in at least 95 % (Jennison & Turnbull,
# "Repeated confidence intervals", J. R. Statist. Soc. B 51, 1989); `python -m scripts.bench confirmation` checks it.
_CONFIDENCE_OF_FEWEST = 0.99
_CONFIDENCE_BEFORE_LAST = 0.985
_CONFIDENCE_AT_LAST = 0.965


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Objective of a search: the definition of its score.

    Attributes:
        measures: Description of the score, for people.
        steadiness_weight: Weight of ln steadiness and ln utilization, where the score is made of speed.
        by_utilization: True if the score is the GPU's utilization instead of speed.
    """

    name: str
    measures: str
    steadiness_weight: float = 0.0
    by_utilization: bool = False

    def is_told_by(self, measurement: Measurement) -> bool:
        """Return True if a measurement holds what the objective needs: an unknown utilization is not 0."""
        return not self.by_utilization or measurement.gpu_utilization is not None

    def penalty(self, lead: float, ln_speed: float) -> float:
        """Return the penalty of a point that is slower than the baseline, where speed is not in the score.

        Such a point counts as no better than the baseline, and as worse by as much as it is slower. So a GPU that is
        busy because training is slow never wins, and the search still learns the direction of higher speed.

        Args:
            lead: Its mean ln score less the baseline's.
            ln_speed: Its mean ln speed less the baseline's.

        Returns:
            At least 0, to be subtracted from its ln score.
        """
        slower = math.log(LEAST_SPEED) - ln_speed
        return max(0.0, lead) + slower if self.by_utilization and slower > 0.0 else 0.0


EFFECTIVE_UTILIZATION = Objective(
    name="effective_utilization",
    measures="throughput and steadiness",
    steadiness_weight=STEADINESS_WEIGHT,
)
THROUGHPUT = Objective(name="throughput", measures="throughput")
UTILIZATION = Objective(
    name="utilization", measures="GPU utilization, among points no slower than today's", by_utilization=True
)

OBJECTIVES: Mapping[str, Objective] = {one.name: one for one in (EFFECTIVE_UTILIZATION, UTILIZATION, THROUGHPUT)}
"""Objectives that a config may name."""


def steadiness(cv: float) -> float:
    """Return ``1 / (1 + cv)``: 1 for steps of equal time per unit of work, less for uneven ones; in (0, 1]."""
    return 1.0 / (1.0 + cv)


def ln_speed(measurement: Measurement, reference: Measurement) -> float:
    """Return ``ln(T / T0)``, the logarithm of the speed ratio of two measurements."""
    return math.log(measurement.speed / reference.speed)


def ln_score(measurement: Measurement, reference: Measurement, objective: Objective = EFFECTIVE_UTILIZATION) -> float:
    """Return the ln score ratio: speed, with steadiness and utilization where both know them; or utilization.

    Args:
        objective: The objective; both trials must tell it (`Objective.is_told_by`).
    """
    if objective.by_utilization:
        one, other = _ln_utilization(measurement), _ln_utilization(reference)
        assert one is not None, "a trial without utilization has no score by it"
        assert other is not None, "nor has one that is compared with such a trial"
        return one - other
    known = [(ln(measurement), ln(reference)) for ln in (_ln_steadiness, _ln_utilization)]
    # an unknown variation is not a large one
    steadier = sum(one - other for one, other in known if one is not None and other is not None)
    added = objective.steadiness_weight * steadier
    return ln_speed(measurement, reference) + max(-MOST_FOR_STEADINESS, min(MOST_FOR_STEADINESS, added))


def _ln_steadiness(measurement: Measurement) -> float | None:
    return None if measurement.cv is None else math.log(steadiness(measurement.cv))


def _ln_utilization(measurement: Measurement) -> float | None:
    # the driver counts in whole percent: below one, all are alike
    return None if measurement.gpu_utilization is None else math.log(max(0.01, measurement.gpu_utilization))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Result of the confirming pairs.

    Attributes:
        speed: Ratio of the candidate's samples per second to the baseline's.
        steadiness: Ratio of steadiness; None where it is not known, or no part of the objective.
        utilization: Ratio of the GPU's utilization; None where it was not measured, or is no part of the objective.
        pairs: Number of pairs.
        standard_error: Standard error of the ln score ratio.
        of_machines: Judgements of the pairs of each machine; empty where one machine made them all.
        confidence: Confidence level of the intervals, the lowest of the machines', see `confidence_of`.
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
        """True if the gain is confirmed: score and speed above their limits, each with its whole interval."""
        return self.score.low > LEAST_SCORE_GAIN and self.speed.low > LEAST_SPEED

    @property
    def smallest_gain(self) -> float:
        """Smallest true gain in score, e.g. 0.05, that pairs of this number and spread detect with probability 1/2."""
        return LEAST_SCORE_GAIN * self.score.ratio / self.score.low - 1.0

    @property
    def steadier(self) -> bool:
        """True if it is shown to be as fast and steadier: evener steps, or a busier GPU, and none of them the worse."""
        return not self.better and self.speed.low > LEAST_SPEED and self._is_steadier(lambda ratio: ratio.low)

    @property
    def wins(self) -> bool:
        """True if it is shown to be better or steadier."""
        return self.better or self.steadier

    @property
    def is_conclusive(self) -> bool:
        """True if it shows a gain, or its pairs are enough to deny one."""
        return self.wins or self.pairs >= LEAST_PAIRS

    @property
    def may_be_steadier(self) -> bool:
        """True if it looks as if further pairs could show that."""
        return self.speed.ratio > LEAST_SPEED and self._is_steadier(lambda ratio: ratio.ratio)

    def widened(self, sd: float) -> "Judgement":
        """Return it with wider intervals, for an error that its pairs have in common.

        Args:
            sd: Standard deviation of that error, of ln speed.
        """
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
        """Return True if the rest of the planned pairs would hardly confirm a gain any more, as far as these tell.

        Args:
            planned_pairs: The most pairs of the confirmation, on each machine.
        """
        if self.of_machines:  # together they may show what one alone does not
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
    """Return the confidence level of the interval after so many pairs.

    A sequential confirmation stops as soon as it is sure, so its earlier intervals are wider: whenever it stops, they
    hold the true ratio as often as that of a confirmation with a fixed number of pairs.

    Args:
        planned_pairs: The most pairs of a sequential confirmation; None for one with a fixed number.
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

    All pairs count: to leave out the slow ones selects on the outcome, and training that stops now and then has slow
    trials by nature. The ratio is that of the mean time of a sample on either side, over trials that are weighted by
    what is known of their errors. Trials of training with stalls differ at least by what the number of stalls in them
    varies, which is known from the steps of all pairs together, much better than from a few trials: the prior variance
    is not below that. A pair far from all others, beyond what stalls explain, counts as a less far one, and the
    interval is wider for it (`winsorized`).

    While caches are being filled, speeds are estimates without the time that steps waited for data: an upper bound for
    full caches; as measured, a config is as slow as it will ever be. The true speed with full caches lies between the
    two, so the intervals reach from the candidate as measured against the baseline's estimate to the candidate's
    estimate against the baseline as measured.

    Args:
        pairs: (baseline, candidate), at least one; trials that selected the candidate must not be among them.
        prior_variance: Variance of one pair's difference of ln score, from the study's other trials: twice that of one
            trial. It serves the speed too, from which a score made of it differs by a fraction of a percent.
        prior_df: Its degrees of freedom; 0 if nothing is known.
        speed_prior: Variance and degrees of freedom for ln speed, where the score is not made of it.
        objective: The objective; all trials must tell it.
        planned_pairs: The most pairs of a sequential confirmation; None for one with a fixed number.

    Raises:
        ValueError: One pair and no prior: there is no interval.
    """
    confidence = confidence_of(len(pairs), planned_pairs)
    speeds = [ln_speed(candidate, baseline) for baseline, candidate in pairs]
    # What orders points of equal speed is no gain: it is judged by itself.
    scores = speeds
    if objective.by_utilization:
        scores = [ln_score(candidate, baseline, objective) for baseline, candidate in pairs]
    estimated = [(_ln_estimated(baseline), _ln_estimated(candidate)) for baseline, candidate in pairs]
    ln_ratio, of_speed = _seen_in_steps(pairs, speed_prior or (prior_variance, prior_df))
    prior = (prior_variance, prior_df) if objective.by_utilization else of_speed
    beyond = 0.0 if winsorized(speeds, of_speed[0]).pulled else ln_ratio - fmean(speeds)
    speed_ratio = score_ratio = _ratio(speeds, estimated, of_speed, confidence, beyond, _half_width_of_cycles(pairs))
    if objective.by_utilization:
        score_ratio = _ratio(scores, [(0.0, 0.0)] * len(pairs), prior, confidence)  # a utilization is no estimate
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
    """Return ln of the candidate's speed over the baseline's, and the prior with what the steps tell of stalls.

    Args:
        prior: Prior variance of a pair's difference, and its degrees of freedom.
    """
    # where nothing was repeated, trials differ as they usually do
    between = prior[0] / 2.0 if prior[1] else TYPICAL_CV**2
    (baseline, first), (candidate, second) = (_weighted_pace(side, between) for side in zip(*pairs, strict=True))
    # The variance of a sum over rare events is known about as well as from half as many normal observations.
    stalls = sum(0 if one.cycles is None else one.cycles + 1 for pair in pairs for one in pair)
    variance, others = len(pairs) * (first + second), 2.0 * between
    if stalls and variance > others:
        prior = variance + (0.0 if prior[1] else others), max(prior[1], stalls / 2.0)
    return math.log(baseline / candidate), prior


def _weighted_pace(trials: Sequence[Measurement], between: float) -> tuple[float, float]:
    """Return the mean time of a sample over some trials, and what stalls add to its relative variance.

    Args:
        between: Variance of ln speed between trials, stalls left out.
    """
    work, time_s = [one.speed * one.window_s for one in trials], math.fsum(one.window_s for one in trials)
    # that of one trial falls with its work, not with its time, which is longer where it had more stalls
    in_all = math.fsum((one.speed_error * one.window_s) ** 2 for one in trials) / time_s**2
    of_stalls = [in_all * math.fsum(work) / one for one in work]
    weights = [1.0 / (between + one) for one in of_stalls]
    pace = math.fsum(weight / one.speed for weight, one in zip(weights, trials, strict=True)) / math.fsum(weights)
    added = math.fsum(weight**2 * one for weight, one in zip(weights, of_stalls, strict=True)) / math.fsum(weights) ** 2
    return pace, added


def on_all_machines(judgements: Sequence[Judgement]) -> Judgement:
    """Unite what several machines of one class have shown, each by pairs of its own.

    Where they agree within their noise their ratios are pooled, each by the width of its interval and by what machines
    of a class differ (a random-effects model of known variance; DerSimonian and Laird, "Meta-analysis in clinical
    trials", Controlled Clinical Trials 7, 1986). Where they do not, the ratio is their mean and the interval reaches
    from the lowest end to the highest, so that a gain is confirmed where it is on every one (an intersection-union
    test; Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24, 1982).
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
    """Return whether machines differ by no more than noise: Cochran's Q, against two standard deviations of it."""
    pooled, freedom = math.log(_pooled(ratios).ratio), len(ratios) - 1
    q = math.fsum(4.0 * _weight(ratio) * (math.log(ratio.ratio) - pooled) ** 2 for ratio in ratios)
    return q <= freedom + 2.0 * math.sqrt(2.0 * freedom)


def _pooled(ratios: Sequence[Ratio]) -> Ratio:
    weights = [_weight(ratio) for ratio in ratios]
    mean = math.fsum(weight * math.log(ratio.ratio) for weight, ratio in zip(weights, ratios, strict=True)) / sum(
        weights
    )
    half_width = 1.0 / math.sqrt(sum(weights))
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - half_width), high=math.exp(mean + half_width))


def _weight(ratio: Ratio) -> float:
    """Return the weight of one machine: one over the square of its half-width, as ln, and of what a class differs."""
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
        estimated: ln of the estimated share of the baseline's and of the candidate's speed, for each pair.
        prior: Prior variance of a pair's difference, and its degrees of freedom.
        confidence: Coverage probability of the interval.
        beyond: What the ratio over all of the time is more than the mean, as ln.
        unseen: Half-width of what further pairs would not tell.
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
    """Return the ratio of something else than speed; None where a trial does not tell it."""
    known = [(ln(baseline), ln(candidate)) for baseline, candidate in pairs]
    differences = [other - one for one, other in known if one is not None and other is not None]
    if len(differences) < len(pairs):
        return None
    return _ratio(differences, [(0.0, 0.0)] * len(pairs), (2.0 * _STEADINESS_SD**2, 2.0), confidence)


def _half_width_of_cycles(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    """Return the half-width, as ln, of what trials do not tell whose window holds too few whole cycles.

    Every one of them begins at the same place of its cycle, and holds a stall too many or too few: pairs agree, and are
    wrong together. A short stall is noise like others, and so is one that the minority of a side's trials have: then
    pairs differ by it.
    """
    errors = [
        [one.speed_error if lacks_cycles(one.cycles, one.speed_error) else 0.0 for one in side]
        for side in zip(*pairs, strict=True)
    ]
    return 2.0 * math.sqrt(sum(median(side) ** 2 for side in errors))


def _ln_estimated(measurement: Measurement) -> float:
    """Return the estimated share of a trial's speed, as a logarithm: 0 unless its caches were being filled."""
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
    """Return the number of pairs that will probably confirm an expected gain.

    Args:
        pair_sd: Standard deviation of one pair's difference.
        least: The ratio that the whole interval has to exceed.
        prior_df: Degrees of freedom of that standard deviation.
        power: Probability of confirming the gain, 0 to 1.
        sequential: True if the confirmation may stop as soon as it is sure, from `FEWEST_PAIRS` on.

    Returns:
        An even number, at least `LEAST_PAIRS`, or `FEWEST_PAIRS` of a sequential confirmation; ``at_most`` (rounded
        down to even) where more would be needed.
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
