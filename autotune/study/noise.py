"""Noise of a study: the variance between trials of one point that a confirmation's own pairs are pooled with."""

from collections.abc import Iterable, Sequence
from statistics import median_low

from autotune.records import Measurement, TrialRecord
from autotune.sampler.observations import TYPICAL_CV
from autotune.score import LEAST_PAIRS, Objective, ln_score
from autotune.statistics import robust_pooled_variance

MOST_PRIOR_DF = 2.0
"""Most degrees of freedom of the prior from other trials: points differ in spread, more so with longer steps."""

_MOST_EARLIER_DF = 1.0  # of what earlier searches showed: the machine may have been another one, or busy
_RECENT_SEARCHES = 5


def pair_noise(
    others: Sequence[TrialRecord], search: str, objective: Objective, *, pairs: int = LEAST_PAIRS
) -> tuple[float, float]:
    """Return the prior variance of a pair's difference of ln score, and its degrees of freedom.

    This search's own repeats come first. Where they are few, the recent searches fill up: the (low) median of what each
    of them showed, and of the typical spread, so that one disturbed period does not set the noise of all later ones.
    Fewer than four pairs tell too little of their own spread, and are always judged with that, too.

    Args:
        others: Trials of the study without the confirmation that is judged, oldest first.
        search: The search that is judged.
        objective: The objective of the search.
        pairs: Number of pairs of the confirmation.
    """
    shown = {name: robust_pooled_variance(points) for name, points in _scores(others, objective).items()}
    own, own_df = shown.pop(search, (0.0, 0.0))
    own_df = min(own_df, MOST_PRIOR_DF)
    earlier = [variance for variance, df in shown.values() if df][-_RECENT_SEARCHES:]
    most_df = _MOST_EARLIER_DF if earlier else 0.0
    expected_df = min(MOST_PRIOR_DF if pairs < LEAST_PAIRS else most_df, MOST_PRIOR_DF - own_df)
    df = own_df + expected_df
    if not df:
        return 0.0, 0.0
    expected = median_low([TYPICAL_CV**2, *earlier])
    return 2.0 * (own_df * own + expected_df * expected) / df, df


def _scores(trials: Iterable[TrialRecord], objective: Objective) -> dict[str, list[list[float]]]:
    """Return the ln scores of each point in each search.

    Points are identified by their names alone, so that the answer depends only on the record, not on the present config
    file or its domains.
    """
    reference: Measurement | None = None
    scores: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        measured = trial.comparable
        if measured and objective.is_told_by(measured):
            reference = reference or measured
            score = ln_score(measured, reference, objective)
            scores.setdefault(trial.search, {}).setdefault(trial.point, []).append(score)
    return {search: list(points.values()) for search, points in scores.items()}
