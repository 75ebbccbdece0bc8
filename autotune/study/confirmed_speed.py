"""Speed that a study has measured for one point, and the interval in which that of real training is expected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autotune.records import NOT_COMPARED, TrialRecord

CONFIDENCE = 0.95
"""Coverage probability of the interval."""

_PRIOR_SD = 0.08  # of ln speed between trials of one config: 7.5 to 9 % on quiet machines
_PRIOR_DF = 6.0
_FEWEST = 2  # trials; what was seen once is not confirmed


@dataclass(frozen=True, kw_only=True)
class ConfirmedSpeed:
    """Speed of a point by the trials of its study.

    Attributes:
        samples_per_s: Geometric mean over the trials; steps instead of samples where those are not known.
        low: Lower end of the prediction interval for one more training, over that mean.
        high: Its upper end.
        trials: Number of trials.
        samples_per_step: Samples in a step where the steps do not say; None if that is not known either.
        after_first_pass: Whether it is the speed after the first pass over the data, when caches are filled.
    """

    samples_per_s: float
    low: float
    high: float
    trials: int
    samples_per_step: float | None = None
    after_first_pass: bool = False

    def __post_init__(self) -> None:
        if not (0.0 < self.samples_per_s < math.inf and 0.0 < self.low <= 1.0 <= self.high < math.inf):
            raise ValueError(f"no speed with its interval: {self.samples_per_s}, {self.low} to {self.high}")


def confirmed_speed(
    records: Sequence[TrialRecord], point: str, *, samples_per_step: float | None = None
) -> ConfirmedSpeed | None:
    """Return the speed of a point; None if fewer than two of its trials can be compared.

    The interval is that of one further observation: ``mean ± t · s · √(1 + 1/n)``. Its variance is that between
    trials, pooled over the points of the study, and moderated by the usual spread of 8 % with 6 degrees of freedom
    (Smyth 2004, see `statistics.moderated_interval`).

    Args:
        records: The study's record.
        point: Name of the point.
        samples_per_step: See `ConfirmedSpeed`.
    """
    groups: dict[str, list[float]] = {}
    is_filled = False
    for trial in records:
        measurement = trial.comparable
        if measurement is None or trial.purpose in NOT_COMPARED:
            continue
        groups.setdefault(trial.point, []).append(math.log(measurement.speed))
        is_filled |= trial.point == point and measurement.filled_samples_per_s is not None
    own = groups.get(point, [])
    interval = prediction_interval(own, list(groups.values()))
    if interval is None:
        return None
    mean, half, trials = interval
    return ConfirmedSpeed(
        samples_per_s=math.exp(mean),
        low=math.exp(-half),
        high=math.exp(half),
        trials=trials,
        samples_per_step=samples_per_step,
        after_first_pass=is_filled,
    )


def prediction_interval(own: Sequence[float], groups: Sequence[Sequence[float]]) -> tuple[float, float, int] | None:
    """Return the interval of ln speed for one more training of a point.

    Args:
        own: ln speed of each of its trials.
        groups: ln speeds of the trials of each point of the study, this one included.

    Returns:
        Its middle, its half-width, and the number of trials that it is made of; None if these are fewer than two.
    """
    from autotune.statistics import SLOW_OUTLIER_FLOOR, robust_pooled_variance, student_t_quantile

    usual = [value for value in own if value >= median(own) - SLOW_OUTLIER_FLOOR]
    if len(usual) < _FEWEST:
        return None
    pooled, pooled_df = robust_pooled_variance(groups)
    df = _PRIOR_DF + pooled_df
    variance = (_PRIOR_DF * _PRIOR_SD**2 + pooled_df * pooled) / df
    half = student_t_quantile((1.0 + CONFIDENCE) / 2.0, df) * math.sqrt(variance * (1.0 + 1.0 / len(usual)))
    return math.fsum(usual) / len(usual), half, len(usual)
