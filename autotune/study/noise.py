"""Noise of a study: the variance between trials of one point, from all repeats."""

from collections.abc import Iterable
from statistics import median_low
from typing import NamedTuple

from autotune.measure.score import LEAST_PAIRS, Objective, ln_score
from autotune.measure.statistics import TYPICAL_CV, robust_pooled_variance
from autotune.records import Measurement, TrialRecord

MOST_DF = 6.0
"""Maximum degrees of freedom from other points: spreads differ, and machines change."""

LEAST_DF = 2.0
"""Degrees of freedom below which the typical spread supplements few repeats."""

_SEARCHES = 5  # number of earlier searches to use


class Noise(NamedTuple):
    """Variance of ln speed or score between trials of one point, with degrees of freedom."""

    variance: float
    df: float


def trial_noise(
    trials: Iterable[TrialRecord], search: str, objective: Objective, *, knows_typical: bool = True
) -> Noise:
    """Return the noise of a search's trials.

    Few repeats are supplemented by the low median of recent searches' noise and the typical spread, which one disturbed
    period doesn't affect.

    Args:
        trials: Trials of the study, oldest first.
        knows_typical: False for no noise without repeats, and less if only earlier searches have any.
    """
    shown = {name: robust_pooled_variance(points) for name, points in _scores(trials, objective).items()}
    own, own_df = shown.pop(search, (0.0, 0.0))
    own_df = min(own_df, MOST_DF)
    earlier = [variance for variance, df in shown.values() if df][-_SEARCHES:]
    most = 1.0 if earlier else 0.0  # earlier searches: another machine, or a busy one
    filled_df = max(0.0, min(LEAST_DF if knows_typical else most, LEAST_DF - own_df))
    if not own_df + filled_df:
        return Noise(0.0, 0.0)
    expected = median_low([TYPICAL_CV**2, *earlier])
    return Noise((own_df * own + filled_df * expected) / (own_df + filled_df), own_df + filled_df)


def pair_noise(
    others: Iterable[TrialRecord], search: str, objective: Objective, *, pairs: int = LEAST_PAIRS
) -> tuple[float, float]:
    """Return the prior variance of a pair's difference of ln score, and its degrees of freedom.

    Args:
        others: Trials of the study without the confirmation to judge, oldest first.
    """
    variance, df = trial_noise(others, search, objective, knows_typical=pairs < LEAST_PAIRS)
    return 2.0 * variance, df


def _scores(trials: Iterable[TrialRecord], objective: Objective) -> dict[str, list[list[float]]]:
    """Return the ln scores of each point by search, independent of today's config."""
    reference: Measurement | None = None
    scores: dict[str, dict[str, list[float]]] = {}
    for trial in trials:
        measured = trial.comparable
        if measured and objective.can_score(measured):
            reference = reference or measured
            score = ln_score(measured, reference, objective)
            scores.setdefault(trial.search, {}).setdefault(trial.point, []).append(score)
    return {search: list(points.values()) for search, points in scores.items()}
