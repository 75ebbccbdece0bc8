"""Summary of a search, computed from the record alone.

So ``search``, ``status`` and ``apply`` give the same answer, at once or after a crash.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from autotune.gpu.trial_usage import NOT_MEASURED
from autotune.metrics import METRICS, values_of
from autotune.records import Measurement, Purpose, TrialRecord
from autotune.results import SearchResult, Side, Verdict
from autotune.sampler.observations import between_trial_variance_of, expected_sd_of
from autotune.score import (
    LEAST_PAIRS,
    LEAST_SCORE_GAIN,
    LEAST_SPEED,
    THROUGHPUT,
    Judgement,
    Objective,
    judge,
    ln_score,
    ln_speed,
)
from autotune.space.space import Space
from autotune.study.changes import changes_worth
from autotune.study.pooled_gpus import pooled_gpus, study_busy_rate

_FILLING = (
    "; caches take longer to fill than there was time, so runs were compared without the time they waited for data, "
    "and the interval holds whatever full caches will make of the two"
)

_UNEVEN = 1.3  # runs that differ by 8 % are within that 99 times in 100

_MOST_PRIOR_DF = 2.0
"""Most degrees of freedom of the prior from other points: points differ in spread, more so with longer steps."""


def latest_search(records: Sequence[TrialRecord], objective: Objective) -> str | None:
    """Return the search to report: the last one with an answer, else the last; None for an empty record.

    An answer is a full confirmation, or the finding that nothing was better than the baseline. A search that was killed
    earlier does not hide the answer of an older one.
    """
    searches = list(dict.fromkeys(trial.search for trial in records))
    for search in reversed(searches):
        trials = [trial for trial in records if trial.search == search]
        today, good = trials[0].point, _telling(trials, objective)
        explored = any(trial.purpose is Purpose.EXPLORE for trial in good)
        if len(pairs_of(good, today)) >= LEAST_PAIRS or (explored and not _best(good, today, objective)):
            return search
    return searches[-1] if searches else None


def pairs_of(trials: Iterable[TrialRecord], today: str) -> list[tuple[Measurement, Measurement]]:
    """Return the complete pairs of a confirmation, (baseline, candidate) each."""
    halves: dict[int, dict[bool, Measurement]] = {}
    for trial in trials:
        measured = trial.comparable
        if trial.purpose is Purpose.CONFIRM and trial.pair is not None and measured:
            halves.setdefault(trial.pair, {})[trial.point == today] = measured
    return [(both[True], both[False]) for both in halves.values() if len(both) == 2]


def summarize(
    records: Sequence[TrialRecord],
    search: str,
    space: Space,
    *,
    objective: Objective,
    why_no_gpu: str | None = None,
) -> SearchResult | None:
    """Compute the answer of one search.

    Args:
        records: The study's record; trials of other searches only contribute to the spread between trials, and those
            after the search's last trial do not count: its answer stays the same.
        search: Name of the search.
        space: The present search space; gives the labels, and nothing that the verdict depends on.
        objective: The objective of the search.
        why_no_gpu: Reason why utilization is not measured on this machine; None if it is.

    Returns:
        The answer; None if no trial of the search gave comparable numbers.
    """
    records = _until_the_end_of(search, records)
    trials = [trial for trial in records if trial.search == search]
    good = _telling(trials, objective)
    if not good:
        return None
    # Each search starts with the baseline, also where that fails.
    today = next((trial for trial in trials if trial.purpose is Purpose.TODAY), None)
    if today is None:
        return None  # its record could not be read, and without it nothing means anything
    busy_rate = study_busy_rate(records)
    why_no_gpu = why_no_gpu or _why_not_measured(good)
    baseline_trials = [trial for trial in good if trial.point == today.point]
    baseline = _side(today, baseline_trials, busy_rate)
    outcomes = dict(Counter(trial.ending.value for trial in trials))

    confirmed = [trial for trial in good if trial.purpose is Purpose.CONFIRM and trial.point != today.point]
    best = confirmed[0].point if confirmed else _best(good, today.point, objective)
    best_trials = [trial for trial in good if trial.point == best]
    answer = _side(best_trials[0], best_trials, busy_rate) if best_trials else None
    changes = (
        tuple(changes_worth(good, today.values, answer.values, space, sd=expected_sd_of(good, THROUGHPUT)))
        if answer
        else ()
    )

    if not baseline_trials:
        return SearchResult(
            verdict=Verdict.NO_BASELINE,
            why=f"today's config gave no numbers ({_ended(today)}), so there is nothing to compare with",
            baseline=baseline,
            best=answer,
            candidate=None,
            speedup=None,
            score_ratio=None,
            smallest_gain=None,
            same_training=None,
            trials=len(trials),
            outcomes=outcomes,
            changes=tuple(replace(change, worth=None) for change in changes),
            objective=objective.name,
            why_no_gpu=why_no_gpu,
        )

    pairs = pairs_of(good, today.point)
    others = [trial for trial in records if trial.purpose is not Purpose.CONFIRM or trial.search != search]
    judgement = _judgement(pairs, others, objective) if len(pairs) >= LEAST_PAIRS else None
    better = judgement is not None and judgement.better
    return SearchResult(
        verdict=Verdict.BETTER if better else Verdict.NO_CHANGE,
        why=_why(
            judgement,
            answer,
            len(pairs),
            explored=any(trial.purpose is Purpose.EXPLORE for trial in trials),
            filling=any(trial.measurement and trial.measurement.filled_samples_per_s for trial in good),
            objective=objective,
        ),
        baseline=baseline,
        best=answer if better else baseline,
        candidate=None if better else answer,
        speedup=judgement.speed if judgement else None,
        score_ratio=judgement.score if judgement else None,
        smallest_gain=judgement.smallest_gain if judgement else None,
        same_training=_same_training(good, baseline_trials, space, objective, busy_rate),
        trials=len(trials),
        outcomes=outcomes,
        changes=changes,
        objective=objective.name,
        why_no_gpu=why_no_gpu,
        cautions=_unevenness(baseline_trials),
    )


def _ended(trial: TrialRecord) -> str:
    return f"{trial.ending.value}: {trial.detail}" if trial.detail else trial.ending.value


def _until_the_end_of(search: str, records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """Return the record as it was at the last trial of a search."""
    last = max((place for place, trial in enumerate(records) if trial.search == search), default=-1)
    return records[: last + 1]


def _telling(trials: Iterable[TrialRecord], objective: Objective) -> list[TrialRecord]:
    """Return the trials with comparable numbers that tell the objective."""
    return [trial for trial in trials if trial.comparable and objective.is_told_by(trial.comparable)]


def _why_not_measured(good: Sequence[TrialRecord]) -> str | None:
    """Return why none of these trials shows a utilization, as the last has it; None if one does, or it is not known."""
    if any(trial.comparable and trial.comparable.gpu_utilization is not None for trial in good):
        return None
    reasons = (trial.conditions.get(NOT_MEASURED) for trial in reversed(good))
    return next((str(reason) for reason in reasons if reason), None)


def _side(point: TrialRecord, trials: Sequence[TrialRecord], busy_rate: float | None) -> Side:
    """Return the point of a trial with the pooled results of all its trials."""
    measured = [trial.comparable for trial in trials if trial.comparable]
    return Side(point=point.point, values=point.values, metrics=pooled(trials), gpus=pooled_gpus(measured, busy_rate))


def _judgement(
    pairs: Sequence[tuple[Measurement, Measurement]], others: Sequence[TrialRecord], objective: Objective
) -> Judgement:
    """Judge the pairs, with the spread between the study's other trials as the prior."""

    def prior(by: Objective) -> tuple[float, float]:
        variance, df = between_trial_variance_of(others, by)
        return 2 * variance, min(df, _MOST_PRIOR_DF)

    variance, df = prior(objective)
    speed_prior = prior(THROUGHPUT) if objective.by_utilization else None
    return judge(pairs, prior_variance=variance, prior_df=df, speed_prior=speed_prior, objective=objective)


def pooled(trials: Sequence[TrialRecord]) -> dict[str, float | None] | None:
    """Return the median of each metric over the comparable trials of a point; None if there is none."""
    measured = [values_of(trial.comparable) for trial in trials if trial.comparable]
    if not measured:
        return None
    known = {name: [value for values in measured if (value := values[name]) is not None] for name in METRICS}
    return {name: median(values) if values else None for name, values in known.items()}


def _best(good: Sequence[TrialRecord], today: str, objective: Objective) -> str | None:
    """Return the point with the best mean score other than the baseline; None if the baseline is the best."""
    means = _mean_scores(good, today, objective)
    best = max(means, key=lambda point: means[point], default=None)
    return best if best != today else None


def _mean_scores(good: Sequence[TrialRecord], today: str, objective: Objective) -> dict[str, float]:
    measured = [(trial.point, trial.comparable) for trial in good if trial.comparable]
    scores: dict[str, list[float]] = {}
    speeds: dict[str, list[float]] = {}
    for point, measurement in measured:
        scores.setdefault(point, []).append(ln_score(measurement, measured[0][1], objective))
        speeds.setdefault(point, []).append(ln_speed(measurement, measured[0][1]))
    means = {point: sum(values) / len(values) for point, values in scores.items()}
    if today not in means:
        return means
    paces = {point: sum(values) / len(values) for point, values in speeds.items()}
    return {
        point: mean - objective.penalty(mean - means[today], paces[point] - paces[today])
        for point, mean in means.items()
    }


def _same_training(
    good: Sequence[TrialRecord],
    baseline: Sequence[TrialRecord],
    space: Space,
    objective: Objective,
    busy_rate: float | None,
) -> tuple[Side, float] | None:
    """Return the best point that leaves the training unchanged, with its speedup over the baseline."""
    today = baseline[0].point
    means = _mean_scores(good, today, objective)
    alike = {
        trial.point: trial
        for trial in good
        if trial.point != today and space.is_same_training(trial.values, baseline[0].values)
    }
    if not alike:
        return None
    best = max(alike, key=lambda point: means[point])
    if means[best] <= means[today]:
        return None
    trials = [trial for trial in good if trial.point == best]
    return _side(alike[best], trials, busy_rate), speed_over(trials, baseline)


def speed_over(trials: Sequence[TrialRecord], baseline: Sequence[TrialRecord]) -> float:
    """Return the geometric mean speed of some trials over that of others, both comparable."""
    return math.exp(fmean(_ln_speeds(trials, baseline[0])) - fmean(_ln_speeds(baseline, baseline[0])))


def _ln_speeds(trials: Sequence[TrialRecord], unit: TrialRecord) -> list[float]:
    assert unit.comparable is not None
    return [ln_speed(trial.comparable, unit.comparable) for trial in trials if trial.comparable]


def _unevenness(baseline: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return remarks on a baseline whose own trials differ widely."""
    speeds = _ln_speeds(baseline, baseline[0])
    ratio = math.exp(max(speeds) - min(speeds))
    if ratio < _UNEVEN:
        return ()
    return (
        f"Of {len(speeds)} trials of today's config, one was {ratio:.2f} times as fast as another: something else may "
        "be at work on this machine, or a few seconds do not show how fast this training is.",
    )


def _why(
    judgement: Judgement | None,
    answer: Side | None,
    pairs: int,
    *,
    explored: bool,
    filling: bool,
    objective: Objective,
) -> str:
    """Return the reason for the verdict, for the user.

    Args:
        judgement: Result of the pairs; None if there were too few.
        answer: The confirmed point, or the candidate.
        pairs: Number of complete pairs.
        explored: True if any point but the baseline was tried.
        filling: True if the caches of the trials were still being filled.
        objective: The objective of the search.
    """
    if answer is None and not explored:
        return "there was no time to try anything but today's values"
    if answer is None and objective.by_utilization:
        return "nothing that was tried keeps the GPU busier without being slower than today's values"
    if answer is None:
        return "nothing that was tried is faster than today's values"
    if judgement is None and pairs == 0:
        return "the best point was not confirmed against today's config: its pairs did not fit, or failed"
    if judgement is None:
        return f"only {pairs} of at least {LEAST_PAIRS} confirming pairs could be measured"
    if judgement.better:
        return f"confirmed by {judgement.pairs} interleaved pairs with today's config" + (_FILLING if filling else "")
    if objective.by_utilization and judgement.score.low > LEAST_SCORE_GAIN:
        return (
            f"{judgement.pairs} interleaved pairs with today's config show a busier GPU, but not that training is no "
            f"slower: the interval of its speed begins at {judgement.speed.low:.2f}x, and {LEAST_SPEED}x is needed"
        )
    if filling:
        return (
            f"{judgement.pairs} interleaved pairs with today's config do not show a gain that would stay: caches take "
            f"longer to fill than there was time, and with full ones it may be from {judgement.speed.low:.2f}x to "
            f"{judgement.speed.high:.2f}x as fast"
        )
    return (
        f"{judgement.pairs} interleaved pairs with today's config do not show a gain; "
        f"one of {judgement.smallest_gain:.0%} or more would probably have been seen"
    )
