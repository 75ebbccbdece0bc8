"""Speed of whole training, from the speed of its steps and from what was seen to come between them.

A pass over the data takes the time of its steps and that of its pauses: the end of the epoch, evaluations, checkpoints.
Steps are compared in confirming pairs, which are short and hardly ever come to a pause. How long pauses take for each
sample that is trained on is known from any trial or training that came to some.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from autotune.measure.statistics import TYPICAL_CV, student_t_quantile
from autotune.records import PAUSE_NOUNS, Measurement, Pauses, Ratio, WholeTraining

_USUAL_SD, _USUAL_DF = 0.3, 3.0
"""Standard deviation of the ln time of one pause, as long as few were seen, and the degrees of freedom that it has."""

_BORROWED_SD = 0.35
"""The same of the time of pauses that were seen with the other side's values alone."""


def whole_training(
    speed: Ratio, measured: tuple[Sequence[Measurement], Sequence[Measurement]], *pauses: Sequence[Pauses]
) -> WholeTraining:
    """Return how much faster whole training is.

    Args:
        speed: Speed of the other point over that of the baseline, from steps.
        measured: Measurements of the baseline, at least one, and of the other.
        pauses: What trials and trainings of the baseline, and then of the other, came to between their steps.

    Returns:
        The ratio with its 95 % interval (delta method on its logarithm): of the steps, of what differs between pauses,
        and of the baseline's own speed, on which the share of pauses depends.
    """
    # Those that came to the most kinds tell of all that is known; a side without such takes the other's.
    kinds = [one.kinds for side in pauses for one in side]
    seen = max(kinds, key=lambda some: (len(some), sorted(some)), default=None)
    if not seen:
        return WholeTraining()
    told = [[one for one in side if one.kinds == seen] for side in pauses]
    borrowed = [not side for side in told]
    (today_pause_s, today_variance), (pause_s, variance) = (
        _time_of_pauses(told[1 - place] if borrowed[place] else told[place]) for place in (0, 1)
    )
    kept = [fmean(one.step_fraction for one in side) if side else 1.0 for side in measured]
    today_s = fmean(one.sample_s for one in measured[0])
    step_s = today_s / (speed.ratio * kept[0] / kept[1])
    today_share, share = today_pause_s / (today_s + today_pause_s), pause_s / (step_s + pause_s)
    if any(borrowed):
        of_pauses = (today_share - share) ** 2 * max(today_variance, variance)
        of_pauses += (max(today_share, share) * _BORROWED_SD) ** 2
    else:
        of_pauses = today_share**2 * today_variance + share**2 * variance
    of_pauses += (today_share - share) ** 2 * TYPICAL_CV**2 / len(measured[0])
    df = _USUAL_DF + sum(max(0, len(side) - 1) for side in told)
    beyond = student_t_quantile(0.975, df) * math.sqrt(of_pauses)
    ratio = (today_s + today_pause_s) / (step_s + pause_s)
    low, high = ((1.0 - share) * math.log(end / speed.ratio) for end in (speed.low, speed.high))
    below, above = (math.exp(math.hypot(end, beyond)) for end in (low, high))
    speedup = Ratio(ratio=ratio, low=ratio / below, high=ratio * above)
    return WholeTraining(speedup=speedup, seen=tuple(kind for kind in PAUSE_NOUNS if kind in seen))


def _time_of_pauses(pauses: Sequence[Pauses]) -> tuple[float, float]:
    """Return the time of pauses for each sample, and the variance of its logarithm, by how much they differ."""
    sample_s = math.fsum(one.time_s for one in pauses) / math.fsum(one.samples for one in pauses)
    if not sample_s:
        return 0.0, 0.0
    apart = [one.count * math.log(max(one.time_s / one.samples, 1e-3 * sample_s) / sample_s) ** 2 for one in pauses]
    of_one = (_USUAL_DF * _USUAL_SD**2 + math.fsum(apart)) / (_USUAL_DF + len(pauses) - 1)
    return sample_s, of_one / sum(one.count for one in pauses)
