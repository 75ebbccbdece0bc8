"""Judgement of a race: whether what is faster also learns faster, from the losses of trainings of equal length. Pure.

Configs are compared by the mean loss per sample over the last quarter of an equal time from the first step, in rounds
in which each trains once with the same seed. The spread between rounds is pooled with what is known before it: the
error of each mean, and how much a loss falls in the time by which the speeds of like trainings differ. Where a race
tells no difference, it calls configs alike if even the ends of the interval are less apart than today's loss falls in
a quarter of the time.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from autotune.measure.loss_curves import LATE, LossLevel, fall_at, level_at, time_of, time_to
from autotune.records import DISTURBED, Ending, LossCurve, Purpose, RaceArm, RaceLeg, TrialRecord
from autotune.results import Learning, LossDifference, Race, Raced
from autotune.statistics import moderated_interval

LEAST_ROUNDS = 2

_LN_SPEED_SD = 0.08  # of like trainings, where trials are short
_PRIOR_DF = 2.0
_CONFIDENCE = 0.975  # equal configs are called unlike in less than 2.5 %, to either side
_ALIKE_LN_TIME = math.log(1.25)
_LEAST_TRAINED_S = 3.0
_CUT = 0.8  # of the others' time: a training that is shorter was cut short
_LONGEST_NEEDED_S = 24 * 3600.0
_SUMMED = 0.35  # of ln of the ratio of the batches, by which the first losses may differ from it
_LEAST_BATCH_RATIO = 1.4
_DROPPED = 0.02  # of the samples of an epoch, and more than a batch
_WELL = (Ending.STOPPED, Ending.COMPLETED)

_Legs = Mapping[int, RaceLeg]
"""Trainings of one config, by round."""


def judge_race(trials: Sequence[TrialRecord], winner: str, *, same_training: bool = False) -> Race | None:
    """Judge the race of an answer.

    Args:
        trials: Trials of one search, oldest first.
        winner: Name of the point that was raced.
        same_training: Whether it is called the same training as today's, and has to learn alike after equally many
            samples.

    Returns:
        The judgement; None where there was no race of that point, or it was cut short before two rounds were whole.
    """
    raced = [
        trial
        for trial in trials
        if trial.purpose is Purpose.RACE and trial.race is not None and trial.validity not in DISTURBED
    ]
    machines = Counter(trial.machine for trial in raced)
    raced = [trial for trial in raced if trial.machine == max(machines, key=lambda name: machines[name])]
    mine = [trial for trial in raced if trial.point == winner or _leg(trial).arm is RaceArm.BASELINE]
    if not any(_leg(trial).arm is RaceArm.WINNER for trial in mine):
        return None
    arms = {arm: [trial for trial in mine if _leg(trial).arm is arm] for arm in RaceArm}
    legs = {arm: {_leg(trial).pair: _leg(trial) for trial in found} for arm, found in arms.items()}
    rounds = [pair for pair in legs[RaceArm.BASELINE] if pair in legs[RaceArm.WINNER]]
    diverged = {arm: any(trial.ending is Ending.DIVERGED for trial in found) for arm, found in arms.items()}
    if len(rounds) < LEAST_ROUNDS and not diverged[RaceArm.WINNER]:
        return None
    race = _Race(
        legs=legs, diverged=diverged, ended={_leg(trial).arm: trial for trial in mine if not _ended_well(trial)}
    )
    judged = race.judged()
    return replace(judged, cautions=race.differences()) if same_training else judged


@dataclass(frozen=True, kw_only=True)
class _Race:
    """Trainings of one race.

    Attributes:
        legs: Those of each config.
        diverged: Whether one of a config's ended with losses that are no numbers.
        ended: Of each config that broke off otherwise, one such training.
    """

    legs: Mapping[RaceArm, _Legs]
    diverged: Mapping[RaceArm, bool]
    ended: Mapping[RaceArm, TrialRecord]

    def judged(self) -> Race:
        """Judge each config against today's."""
        scaled = next(iter(self.legs[RaceArm.SCALED].values()), None)
        any_leg = next(iter(self.legs[RaceArm.BASELINE].values()), None)
        why = self._why_unknown()
        time_s = self._equal_s()
        return Race(
            winner=self._raced(RaceArm.WINNER, time_s, why),
            scaled=self._raced(RaceArm.SCALED, time_s, why) if scaled else None,
            trained_s=time_s,
            pairs=len(self.legs[RaceArm.BASELINE]),
            checkpoint=any_leg.checkpoint if any_leg and any_leg.resumed else "",
            why_unknown=why,
            learning_rate_key=scaled.learning_rate_key if scaled else "",
            learning_rate=scaled.learning_rate if scaled else None,
        )

    def differences(self) -> tuple[str, ...]:
        """Return what shows that a training which is called the same is not."""
        found = []
        difference = None if self._why_unknown() else self._at_equal_samples(RaceArm.WINNER)
        if difference is not None and difference.is_told:
            lower = "lower" if difference.high < 0.0 else "higher"
            found.append(
                f"these values are called the same training, but its loss is {lower} after equally many samples: "
                f"{difference.other:.4g} and {difference.today:.4g} today (97.5 % interval of the difference "
                f"{difference.low:+.3g} to {difference.high:+.3g}). Look for samples that are dropped or repeated, an "
                "order that has changed, or an augmentation that a cache has frozen"
            )
        sizes = {
            arm: [leg.epoch_samples for leg in self.legs[arm].values() if leg.epoch_samples]
            for arm in (RaceArm.BASELINE, RaceArm.WINNER)
        }
        if all(sizes.values()):
            today, other = (median(sizes[arm]) for arm in (RaceArm.BASELINE, RaceArm.WINNER))
            batch = max((leg.update_samples or 0.0 for legs in self.legs.values() for leg in legs.values()), default=0)
            if abs(other - today) > max(_DROPPED * today, 1.5 * batch):
                found.append(
                    f"these values are called the same training, but an epoch of it has {other:,.0f} samples, and "
                    f"{today:,.0f} today"
                )
        return tuple(found)

    def _equal_s(self) -> float:
        """Return the time after which all trainings that went well can be compared."""
        times_s = [leg.trained_s for legs in self.legs.values() for leg in legs.values() if leg.curve is not None]
        if not times_s:
            return 0.0
        return min(time_s for time_s in times_s if time_s >= _CUT * median(times_s))

    def _why_unknown(self) -> str:
        """Return why the losses of the winner and of today's config cannot be compared; empty if they can."""
        today, winner = self.legs[RaceArm.BASELINE], self.legs[RaceArm.WINNER]
        if self.diverged[RaceArm.BASELINE]:
            return "the loss of today's config itself is not a number"
        for arm, name in ((RaceArm.BASELINE, "today's config"), (RaceArm.WINNER, "these values")):
            if arm in self.ended:
                trial = self.ended[arm]
                return f"the training of {name} ended early: {trial.ending.value}"
        if any(leg.curve is None for leg in (*today.values(), *winner.values())) and not self.diverged[RaceArm.WINNER]:
            return "too few losses were seen in that time"
        if self._equal_s() < _LEAST_TRAINED_S:
            return "training ended by itself before there was something to compare"
        if self._is_summed():
            return "the loss seems to be a sum over the batch, which grows with it"
        return ""

    def _is_summed(self) -> bool:
        """Return whether the first losses differ as the batches do."""
        firsts, batches = [], []
        for arm in (RaceArm.WINNER, RaceArm.BASELINE):
            legs = self.legs[arm].values()
            firsts.append([leg.first_loss for leg in legs if leg.first_loss])
            batches.append([leg.update_samples for leg in legs if leg.update_samples])
        if not all((*firsts, *batches)):
            return False
        loss, batch = (median(pair[0]) / median(pair[1]) for pair in (firsts, batches))
        if loss <= 0.0 or max(batch, 1.0 / batch) < _LEAST_BATCH_RATIO:
            return False
        return abs(math.log(loss) - math.log(batch)) < _SUMMED * abs(math.log(batch))

    def _raced(self, arm: RaceArm, time_s: float, why_unknown: str) -> Raced:
        if self.diverged[arm] and not self.diverged[RaceArm.BASELINE]:
            return Raced(learning=Learning.SLOWER, diverged=True)
        curves = self._curves(arm)
        if why_unknown or arm in self.ended or len(curves) < LEAST_ROUNDS:
            return Raced(learning=Learning.UNKNOWN)
        levels = [(level_at(today, time_s), level_at(other, time_s)) for today, other in curves]
        fall = max(0.0, fmean(fall_at(today, time_s) for today, _ in curves))
        difference = _difference(levels, speed_variance=2.0 * (fall * _LN_SPEED_SD) ** 2)
        learning = _learning(difference, alike=fall * _ALIKE_LN_TIME)
        return Raced(
            learning=learning,
            at_equal_time=difference,
            at_equal_samples=self._at_equal_samples(arm),
            learning_speed=_learning_speed(curves, difference, time_s),
            needed_s=_needed_s(difference, len(curves), time_s) if learning is Learning.UNKNOWN else None,
            evaluation_losses=self._evaluation_losses(arm),
        )

    def _curves(self, arm: RaceArm) -> list[tuple[LossCurve, LossCurve]]:
        """Return the curves of today's config and of another in each round that has both."""
        today, others = self.legs[RaceArm.BASELINE], self.legs[arm]
        pairs = [(today[pair].curve, others[pair].curve) for pair in sorted(today) if pair in others]
        return [(one, other) for one, other in pairs if one is not None and other is not None]

    def _evaluation_losses(self, arm: RaceArm) -> tuple[float, float] | None:
        sides = [[leg.evaluation_loss for leg in self.legs[side].values()] for side in (RaceArm.BASELINE, arm)]
        today, other = ([loss for loss in losses if loss is not None] for losses in sides)
        if len(today) + len(other) < sum(map(len, sides)) or not (today and other):
            return None
        return fmean(today), fmean(other)

    def _at_equal_samples(self, arm: RaceArm) -> LossDifference | None:
        curves = [pair for pair in self._curves(arm) if pair[0].samples and pair[1].samples]
        if len(curves) < LEAST_ROUNDS:
            return None
        samples = min(curve.samples[-1] for pair in curves for curve in pair)
        levels = [(_level_after(today, samples), _level_after(other, samples)) for today, other in curves]
        return _difference(levels, speed_variance=0.0)


def _leg(trial: TrialRecord) -> RaceLeg:
    assert trial.race is not None
    return trial.race


def _ended_well(trial: TrialRecord) -> bool:
    return trial.ending in (*_WELL, Ending.DIVERGED)


def _level_after(curve: LossCurve, samples: float) -> LossLevel:
    return level_at(curve, time_of(curve, samples), from_s=time_of(curve, LATE * samples))


def _difference(levels: Sequence[tuple[LossLevel, LossLevel]], *, speed_variance: float) -> LossDifference:
    """Return the difference of two configs over the rounds.

    Args:
        levels: Of each round that of today's config, and that of the other.
        speed_variance: Variance of the difference by the speeds of like trainings.
    """
    errors = [(today.error or 0.0) ** 2 + (other.error or 0.0) ** 2 for today, other in levels]
    differences = [other.mean - today.mean for today, other in levels]
    mean, half = moderated_interval(differences, fmean(errors) + speed_variance, _PRIOR_DF, _CONFIDENCE)
    return LossDifference(
        today=fmean(today.mean for today, _ in levels),
        other=fmean(other.mean for _, other in levels),
        low=mean - half,
        high=mean + half,
    )


def _learning(difference: LossDifference, *, alike: float) -> Learning:
    if difference.is_told:
        return Learning.FASTER if difference.high < 0.0 else Learning.SLOWER
    return Learning.ALIKE if max(-difference.low, difference.high) <= alike else Learning.UNKNOWN


def _learning_speed(
    curves: Sequence[tuple[LossCurve, LossCurve]], difference: LossDifference, time_s: float
) -> float | None:
    """Return how much sooner the one that is ahead came to the loss of the other."""
    is_ahead = difference.other < difference.today
    ahead = [other if is_ahead else today for today, other in curves]
    reached_s = time_to(ahead, difference.today if is_ahead else difference.other, time_s)
    if reached_s is None:
        return None
    return time_s / reached_s if is_ahead else reached_s / time_s


def _needed_s(difference: LossDifference, rounds: int, time_s: float) -> float | None:
    """Return the training time of a race that would probably tell, with more rounds of this length."""
    mean, half = (difference.low + difference.high) / 2.0, (difference.high - difference.low) / 2.0
    if not mean:
        return None
    needed_s = 2 * time_s * max(rounds + 2, math.ceil(rounds * (half / mean) ** 2))
    return needed_s if needed_s <= _LONGEST_NEEDED_S else None
