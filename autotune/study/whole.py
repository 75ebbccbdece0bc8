"""Speed of whole training, from the speed of steps and the pauses between them (epoch ends, evaluations, checkpoints).

Confirming pairs are too short for pauses; any trial or training with pauses shows their time per sample.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from autotune.measure.statistics import TYPICAL_CV, student_t_quantile
from autotune.records import PAUSE_NOUNS, Measurement, Pauses, Ratio, WholeTraining

_USUAL_SD, _USUAL_DF = 0.3, 3.0
"""Prior standard deviation of the ln time of one pause, and its degrees of freedom."""

_BORROWED_SD = 0.35
"""The same for pauses measured only with the other config."""


def whole_training(
    speed: Ratio, measured: tuple[Sequence[Measurement], Sequence[Measurement]], *pauses: Sequence[Pauses]
) -> WholeTraining:
    """Return the speedup of whole training, with its 95 % interval (delta method on the logarithm).

    Args:
        speed: Speedup of steps over the baseline.
        measured: Measurements of the baseline, at least one, and of the other.
        pauses: Pauses of the baseline, and of the other.
    """
    # use measurements with the most kinds of pauses; a side without any borrows the other's
    kinds = [one.kinds for side in pauses for one in side]
    seen = max(kinds, key=lambda some: (len(some), sorted(some)), default=None)
    if not seen:
        return WholeTraining()
    used = [[one for one in side if one.kinds == seen] for side in pauses]
    borrowed = [not side for side in used]
    (baseline_pause_s, baseline_variance), (pause_s, variance) = (
        _time_of_pauses(used[1 - place] if borrowed[place] else used[place]) for place in (0, 1)
    )
    kept = [fmean(one.step_fraction for one in side) if side else 1.0 for side in measured]
    baseline_s = fmean(one.sample_s for one in measured[0])
    step_s = baseline_s / (speed.ratio * kept[0] / kept[1])
    baseline_share, share = baseline_pause_s / (baseline_s + baseline_pause_s), pause_s / (step_s + pause_s)
    if any(borrowed):
        of_pauses = (baseline_share - share) ** 2 * max(baseline_variance, variance)
        of_pauses += (max(baseline_share, share) * _BORROWED_SD) ** 2
    else:
        of_pauses = baseline_share**2 * baseline_variance + share**2 * variance
    of_pauses += (baseline_share - share) ** 2 * TYPICAL_CV**2 / len(measured[0])
    df = _USUAL_DF + sum(max(0, len(side) - 1) for side in used)
    beyond = student_t_quantile(0.975, df) * math.sqrt(of_pauses)
    ratio = (baseline_s + baseline_pause_s) / (step_s + pause_s)
    low, high = ((1.0 - share) * math.log(end / speed.ratio) for end in (speed.low, speed.high))
    below, above = (math.exp(math.hypot(end, beyond)) for end in (low, high))
    speedup = Ratio(ratio=ratio, low=ratio / below, high=ratio * above)
    return WholeTraining(speedup=speedup, seen=tuple(kind for kind in PAUSE_NOUNS if kind in seen))


def _time_of_pauses(pauses: Sequence[Pauses]) -> tuple[float, float]:
    """Return the time of pauses per sample, and the variance of its logarithm."""
    sample_s = math.fsum(one.time_s for one in pauses) / math.fsum(one.samples for one in pauses)
    if not sample_s:
        return 0.0, 0.0
    squares = [one.count * math.log(max(one.time_s / one.samples, 1e-3 * sample_s) / sample_s) ** 2 for one in pauses]
    of_one = (_USUAL_DF * _USUAL_SD**2 + math.fsum(squares)) / (_USUAL_DF + len(pauses) - 1)
    return sample_s, of_one / sum(one.count for one in pauses)
