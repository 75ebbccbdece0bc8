"""Achieved speeds of real trainings, compared with the claimed ones."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean

from autotune.measure.score import Objective
from autotune.measure.statistics import TYPICAL_CV
from autotune.records import Achieved, AchievedTraining, Purpose, Ratio, TrialRecord
from autotune.study.answer import Finalist, judged_finalists

TRAINING_SD = 0.03
"""Standard deviation of ln speed between real trainings of one config, minutes long or longer."""

_PRIOR_CLAIMS = 2
"""Error-free claims assumed a priori."""


def achieved_with(records: Sequence[TrialRecord], baseline: str, point: str, *, claimed: Ratio) -> Achieved | None:
    """Return what real trainings with a point achieved over the baseline's, or over its trials, on the same machine.

    Args:
        records: Trials of the current code.
        claimed: Speed ratio in confirming pairs, ends of epochs included.
    """
    compared = list(filter(None, (_compared(one, records, baseline) for one in _trainings(records, point))))
    if not compared:
        return None
    counted_s = math.fsum(one.counted_s for one in compared)

    def mean(values: Iterable[tuple[float, float]]) -> float:
        return math.fsum(value * weight_s for value, weight_s in values) / counted_s

    steps = mean((one.steps, one.counted_s) for one in compared)
    tried = [[one.comparable for one in records if one.point == name and one.comparable] for name in (baseline, point)]
    kept, own = (fmean(one.step_fraction for one in side) if side else 1.0 for side in tried)
    claimed = Ratio(**{name: end * kept / own for name, end in asdict(claimed).items()})
    wholes = [(one.whole, one.counted_s) for one in compared if one.whole is not None]
    is_less, is_more = steps < claimed.low * (1.0 - TRAINING_SD), steps > claimed.high * (1.0 + TRAINING_SD)
    return Achieved(
        point=point,
        claimed=claimed,
        outcome="less" if is_less else "more" if is_more else "as",
        counted_s=counted_s,
        steps=steps,
        whole=mean(wholes) if len(wholes) == len(compared) else None,
        pause_fraction=mean((one.pause_fraction, one.counted_s) for one in compared),
        trainings=tuple(compared),
    )


def _compared(training: TrialRecord, records: Sequence[TrialRecord], baseline: str) -> AchievedTraining | None:
    done = training.measurement
    assert done is not None
    trained = [one.measurement for one in _trainings(records, baseline) if one.machine == training.machine]
    tried = [one.comparable for one in records if (one.point, one.machine) == (baseline, training.machine)]
    compared = [one for one in trained or tried if one is not None]
    if not compared:
        return None
    kinds, overall = done.pauses and done.pauses.kinds, done.overall_samples_per_s
    # overall speeds are comparable only with the same kinds of pauses
    wholes = [(one, one.overall_samples_per_s) for one in compared if one.pauses and one.pauses.kinds == kinds]
    overall_s = [(1.0 / whole, one.pauses.samples) for one, whole in wholes if whole and one.pauses]
    sample_s = fmean((one.sample_s for one in compared), (one.window_s * one.speed for one in compared))
    return AchievedTraining(
        name=training.search,
        ended_utc=training.ended_utc,
        counted_s=training.duration_s,
        steps=sample_s / done.sample_s,
        whole=fmean(*zip(*overall_s, strict=True)) * overall if overall_s and overall else None,
        pause_fraction=1.0 - overall * done.sample_s if overall else 0.0,
        is_against_training=bool(trained),
    )


def _trainings(records: Iterable[TrialRecord], point: str) -> list[TrialRecord]:
    return [one for one in records if one.purpose is Purpose.TRAINING and one.point == point and one.measurement]


def claims_sd(records: Sequence[TrialRecord], objective: Objective) -> float:
    """Return the standard deviation of ln speed by which claims missed achieved speeds, beyond their intervals.

    Method of moments of a random-effects model (DerSimonian and Laird, "Meta-analysis in clinical trials", Controlled
    Clinical Trials 7, 1986), shrunk towards 0. Below half a percent, 0.
    """
    trained = {one.point for one in records if one.purpose is Purpose.TRAINING}
    searches = dict.fromkeys(one.search for one in records if trained and one.purpose is Purpose.CONFIRM)
    claims: dict[tuple[str, str], Finalist] = {}  # the latest of each point
    for search in searches:
        baseline = next(one.point for one in records if one.search == search)
        for finalist in judged_finalists(records, search, objective):
            if finalist.judgement is not None and finalist.judgement.wins and finalist.trial.point in trained:
                claims[baseline, finalist.trial.point] = finalist
    beyond = []
    for (baseline, point), finalist in claims.items():
        assert finalist.judgement is not None
        achieved = achieved_with(records, baseline, point, claimed=finalist.judgement.speed)
        if achieved is None:
            continue
        claimed, widened = achieved.claimed, finalist.trial.conditions.claims_sd or 0.0
        claim_variance = (math.log(claimed.high / claimed.low) / (2.0 * 1.96)) ** 2 - widened**2
        against_training = all(one.is_against_training for one in achieved.trainings)
        own = TRAINING_SD**2 + (TRAINING_SD if against_training else TYPICAL_CV) ** 2
        beyond.append(math.log(achieved.steps / claimed.ratio) ** 2 - max(0.0, claim_variance) - own)
    sd = math.sqrt(max(0.0, math.fsum(beyond)) / (len(beyond) + _PRIOR_CLAIMS))
    return sd if sd >= 0.005 else 0.0
