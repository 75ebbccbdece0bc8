"""Noise of a study: how much trials of one point differ, told by everything that was repeated."""

from collections.abc import Iterable
from statistics import median_low
from typing import NamedTuple

from autotune.measure.score import LEAST_PAIRS, Objective, ln_score
from autotune.measure.statistics import TYPICAL_CV, robust_pooled_variance
from autotune.records import Measurement, TrialRecord

MOST_DF = 6.0
"""Most degrees of freedom of what trials of other points tell: points differ in spread, and a machine changes."""

LEAST_DF = 2.0
"""Degrees of freedom up to which the typical spread fills up what few repeats tell."""

_SEARCHES = 5  # that tell the noise of a later one


class Noise(NamedTuple):
    """Variance of ln speed, or ln score, between trials of one point, with its degrees of freedom."""

    variance: float
    df: float


def trial_noise(
    trials: Iterable[TrialRecord], search: str, objective: Objective, *, knows_typical: bool = True
) -> Noise:
    """Return the noise of a search's trials.

    Its own repeats come first. Where they are few, what recent searches showed fills up, and the typical spread: the
    (low) median of these, so that one disturbed period does not set the noise of all later ones.

    Args:
        trials: Trials of the study, oldest first.
        knows_typical: False to know nothing where nothing was repeated, and less where only earlier searches did.
    """
    shown = {name: robust_pooled_variance(points) for name, points in _scores(trials, objective).items()}
    own, own_df = shown.pop(search, (0.0, 0.0))
    own_df = min(own_df, MOST_DF)
    earlier = [variance for variance, df in shown.values() if df][-_SEARCHES:]
    most = 1.0 if earlier else 0.0  # of earlier searches: the machine may have been another one, or busy
    filled_df = max(0.0, min(LEAST_DF if knows_typical else most, LEAST_DF - own_df))
    if not own_df + filled_df:
        return Noise(0.0, 0.0)
    expected = median_low([TYPICAL_CV**2, *earlier])
    return Noise((own_df * own + filled_df * expected) / (own_df + filled_df), own_df + filled_df)


def pair_noise(
    others: Iterable[TrialRecord], search: str, objective: Objective, *, pairs: int = LEAST_PAIRS
) -> tuple[float, float]:
    """Return the prior variance of a pair's difference of ln score, and its degrees of freedom.

    Fewer than four pairs tell too little of their own spread, and are always judged with the typical one, too.

    Args:
        others: Trials of the study without the confirmation that is judged, oldest first.
    """
    variance, df = trial_noise(others, search, objective, knows_typical=pairs < LEAST_PAIRS)
    return 2.0 * variance, df


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
