"""What a search found, worked out from the record alone.

So the search itself, ``status`` and ``apply`` give the same answer, now or after a crash.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from autotune.metrics import METRICS, values_of
from autotune.records import Measurement, Purpose, RunRecord, SearchResult, Side, Verdict
from autotune.score import LEAST_PAIRS, Judgement, judge, ln_score, ln_speed
from autotune.search.effects import changes_worth
from autotune.search.levels import Levels, between_run_variance
from autotune.space.space import Space

_FILLING = (
    "; caches take longer to fill than there was time, so runs were compared without the time they waited for data: "
    "as they will probably be once the caches are full"
)

_MOST_PRIOR_DF = 2.0
"""What the spread of other points tells of that of two: points differ in it, the more so the longer their steps."""


def latest_search(records: Sequence[RunRecord]) -> str | None:
    """The search to report: the last one that came to an answer, else the last; None for an empty record.

    An answer is a full confirmation, or that nothing it tried was faster than today's config. A search that was
    killed before does not hide the answer of an earlier one.
    """
    searches = list(dict.fromkeys(run.search for run in records))
    for search in reversed(searches):
        runs = [run for run in records if run.search == search]
        today = runs[0].point
        explored = [run for run in runs if run.purpose is Purpose.EXPLORE and run.comparable]
        if len(pairs_of(runs, today)) >= LEAST_PAIRS or (explored and not _fastest(runs, today, 0.0)):
            return search
    return searches[-1] if searches else None


def pairs_of(runs: Iterable[RunRecord], today: str) -> list[tuple[Measurement, Measurement]]:
    """The complete pairs of a confirmation, (today, candidate) each."""
    halves: dict[int, dict[bool, Measurement]] = {}
    for run in runs:
        measured = run.comparable
        if run.purpose is Purpose.CONFIRM and run.pair is not None and measured:
            halves.setdefault(run.pair, {})[run.point == today] = measured
    return [(both[True], both[False]) for both in halves.values() if len(both) == 2]


def summarize(
    records: Sequence[RunRecord], search: str, space: Space, *, steadiness_weight: float
) -> SearchResult | None:
    """Works out the answer of one search.

    Args:
        records: The study's record; runs of other searches only help to know the spread between runs.
        search: Name of the search.
        space: What may vary now; gives the labels.
        steadiness_weight: As in `score.ln_score`.

    Returns:
        The answer; None if no run of the search gave comparable numbers.
    """
    runs = [run for run in records if run.search == search]
    good = [run for run in runs if run.comparable]
    if not good:
        return None
    # Each search starts with today's config, also where that fails.
    today = next((run for run in runs if run.purpose is Purpose.TODAY), None)
    if today is None:
        return None  # its record could not be read, and without it nothing means anything
    baseline_runs = [run for run in good if run.point == today.point]
    baseline = Side(values=today.values, metrics=pooled(baseline_runs))
    outcomes = dict(Counter(run.ending.value for run in runs))

    confirmed = [run for run in good if run.purpose is Purpose.CONFIRM and run.point != today.point]
    best = confirmed[0].point if confirmed else _fastest(good, today.point, steadiness_weight)
    best_runs = [run for run in good if run.point == best]
    answer = Side(values=best_runs[0].values, metrics=pooled(best_runs)) if best_runs else None
    changes = tuple(changes_worth(good, today.values, answer.values, space)) if answer else ()

    if not baseline_runs:
        return SearchResult(
            verdict=Verdict.NO_BASELINE,
            why=f"today's config gave no numbers ({today.ending.value}), so there is nothing to compare with",
            baseline=baseline,
            best=answer,
            candidate=None,
            speedup=None,
            score_ratio=None,
            smallest_gain=None,
            same_training=None,
            runs=len(runs),
            outcomes=outcomes,
            changes=changes,
        )

    pairs = pairs_of(runs, today.point)
    levels = Levels(
        space, steadiness_weight, (run for run in records if run.purpose is not Purpose.CONFIRM or run.search != search)
    )
    variance, df = between_run_variance(levels)
    df = min(df, _MOST_PRIOR_DF)
    judgement = (
        judge(pairs, prior_variance=2 * variance, prior_df=df, steadiness_weight=steadiness_weight)
        if len(pairs) >= LEAST_PAIRS
        else None
    )
    better = judgement is not None and judgement.better
    return SearchResult(
        verdict=Verdict.BETTER if better else Verdict.NO_CHANGE,
        why=_why(
            judgement,
            answer,
            len(pairs),
            explored=any(run.purpose is Purpose.EXPLORE for run in runs),
            filling=any(run.measurement and run.measurement.filled_samples_per_s for run in good),
        ),
        baseline=baseline,
        best=answer if better else baseline,
        candidate=None if better else answer,
        speedup=judgement.speed if judgement else None,
        score_ratio=judgement.score if judgement else None,
        smallest_gain=judgement.smallest_gain if judgement else None,
        same_training=_same_training(good, baseline_runs, space, steadiness_weight),
        runs=len(runs),
        outcomes=outcomes,
        changes=changes,
    )


def pooled(runs: Sequence[RunRecord]) -> dict[str, float | None] | None:
    """Each metric's median over the comparable runs of a point; None if there is no such run."""
    measured = [values_of(run.comparable) for run in runs if run.comparable]
    if not measured:
        return None
    known = {name: [value for values in measured if (value := values[name]) is not None] for name in METRICS}
    return {name: median(values) if values else None for name, values in known.items()}


def _fastest(good: Sequence[RunRecord], today: str, steadiness_weight: float) -> str | None:
    """The point with the best mean score that is not today's; None if today's is the best."""
    means = _mean_scores(good, steadiness_weight)
    best = max(means, key=lambda point: means[point], default=None)
    return best if best != today else None


def _mean_scores(good: Sequence[RunRecord], steadiness_weight: float) -> dict[str, float]:
    measured = [(run.point, run.comparable) for run in good if run.comparable]
    scores: dict[str, list[float]] = {}
    for point, measurement in measured:
        score = ln_score(measurement, measured[0][1], steadiness_weight=steadiness_weight)
        scores.setdefault(point, []).append(score)
    return {point: sum(values) / len(values) for point, values in scores.items()}


def _same_training(
    good: Sequence[RunRecord], baseline: Sequence[RunRecord], space: Space, steadiness_weight: float
) -> tuple[Side, float] | None:
    """The best point that leaves the training itself unchanged, with its speed against today's runs."""
    means = _mean_scores(good, steadiness_weight)
    today = baseline[0].point
    alike = {
        run.point: run.values
        for run in good
        if run.point != today and space.is_same_training(run.values, baseline[0].values)
    }
    if not alike:
        return None
    best = max(alike, key=lambda point: means[point])
    if means[best] <= means[today]:
        return None
    runs = [run for run in good if run.point == best]
    return Side(values=alike[best], metrics=pooled(runs)), speed_over(runs, baseline)


def speed_over(runs: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> float:
    """Geometric mean speed of some runs over that of others, both comparable."""
    unit = baseline[0].comparable
    assert unit is not None

    def level(some: Sequence[RunRecord]) -> float:
        logs = [ln_speed(run.comparable, unit) for run in some if run.comparable]
        return sum(logs) / len(logs)

    return math.exp(level(runs) - level(baseline))


def _why(judgement: Judgement | None, answer: Side | None, pairs: int, *, explored: bool, filling: bool) -> str:
    """The reason for the verdict, for the user.

    Args:
        judgement: What the pairs show; None if there were too few.
        answer: What was confirmed, or would have been.
        pairs: Complete pairs.
        explored: Whether anything but today's config was tried.
        filling: Whether the caches of the runs were still being filled.
    """
    if answer is None and not explored:
        return "there was no time to try anything but today's values"
    if answer is None:
        return "nothing that was tried is faster than today's values"
    if judgement is None and pairs == 0:
        return "the best point was not confirmed against today's config: its pairs did not fit, or failed"
    if judgement is None:
        return f"only {pairs} of at least {LEAST_PAIRS} confirming pairs could be measured"
    if judgement.better:
        return f"confirmed by {judgement.pairs} interleaved pairs with today's config" + (_FILLING if filling else "")
    return (
        f"{judgement.pairs} interleaved pairs with today's config do not show a gain; "
        f"one of {judgement.smallest_gain:.0%} or more would probably have been seen"
    )
