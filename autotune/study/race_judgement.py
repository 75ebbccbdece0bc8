"""Judgement of a race: convergence of a config relative to the baseline, from losses of equally long trainings. Pure.

The mean loss per sample over the last quarter of an equal time is compared, in rounds of one training each with the
same seed. The spread between rounds is pooled with the error of each mean and the effect of speed noise. Without a
difference, configs converge equally fast if the interval lies within the fall of the baseline's loss in a quarter of
the time.

If every training has two evaluations, their losses decide. A training loss separates learning from overfitting only
while no sample repeats (prequential evaluation, Dawid 1984). In either case, a loss that is lower after equally many
samples (or updates, for a smaller batch) doesn't count: batch, cache and order can't cause that.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean, median

from autotune.measure.loss_curves import LATE, LossLevel, fall_at, level_at, through_points, time_of, time_to
from autotune.measure.statistics import moderated_interval
from autotune.records import (
    DISTURBED,
    Ending,
    Learning,
    LossCurve,
    LossDifference,
    Purpose,
    Race,
    RaceArm,
    Raced,
    RaceLeg,
    TrialRecord,
)
from autotune.space.knob import Label

LEAST_ROUNDS = 2

_EQUAL_LN_TIME = math.log(1.25)
_LEAST_TRAINED_S = 3.0
_LONGEST_NEEDED_S = 24 * 3600.0
_ONE_PASS = 1.05
_PLAUSIBLE = 1.3  # maximum ratio of learning speed to explained speed: seeds differ

_CHECK_FOR = "Check for dropped or repeated samples, a changed order, or augmentation frozen by a cache"
_IMPLAUSIBLY_LOW = "after equally many samples its training loss is lower than a batch or cache can make it"

_Legs = Mapping[int, RaceLeg]
"""Trainings of one config, by round."""

_Curves = Sequence[tuple[LossCurve, LossCurve]]
"""Curves of the baseline and another config in each round."""


def judge_race(trials: Sequence[TrialRecord], winner: str, *, changes: Set[Label]) -> Race | None:
    """Judge the race of an answer; None without two complete rounds.

    Args:
        trials: Trials of one search, oldest first.
        changes: Labels of its changes.
    """
    raced = [
        (trial, trial.race)
        for trial in trials
        if trial.purpose is Purpose.RACE and trial.race is not None and trial.validity not in DISTURBED
    ]
    machines = Counter(trial.machine for trial, _ in raced)
    machine = max(machines, key=lambda name: machines[name], default="")
    mine = [
        (trial, leg)
        for trial, leg in raced
        if trial.machine == machine and (trial.point == winner or leg.arm is RaceArm.BASELINE)
    ]
    legs = {arm: {leg.pair: leg for _, leg in mine if leg.arm is arm} for arm in RaceArm}
    diverged = {leg.arm for trial, leg in mine if trial.ending is Ending.DIVERGED}
    rounds = legs[RaceArm.BASELINE].keys() & legs[RaceArm.WINNER].keys()
    if not legs[RaceArm.WINNER] or (len(rounds) < LEAST_ROUNDS and RaceArm.WINNER not in diverged):
        return None
    well = (Ending.STOPPED, Ending.COMPLETED, Ending.DIVERGED)
    ended = {leg.arm: trial for trial, leg in mine if trial.ending not in well}
    return _Race(legs=legs, diverged=diverged, ended=ended, changes=changes).judged()


@dataclass(frozen=True, kw_only=True)
class _Race:
    """Trainings of one race.

    Attributes:
        ended: One training of each config that ended early without diverging.
    """

    legs: Mapping[RaceArm, _Legs]
    diverged: Set[RaceArm]
    ended: Mapping[RaceArm, TrialRecord]
    changes: Set[Label]

    def judged(self) -> Race:
        scaled = next(iter(self.legs[RaceArm.SCALED].values()), None)
        any_leg = next(iter(self.legs[RaceArm.BASELINE].values()), None)
        why = self._why_unknown()
        winner = self._raced(RaceArm.WINNER, why)
        return Race(
            winner=winner,
            scaled=self._raced(RaceArm.SCALED, why) if scaled else None,
            trained_s=self._equal_s(),
            pairs=len(self.legs[RaceArm.BASELINE]),
            checkpoint=any_leg.checkpoint if any_leg and any_leg.resumed else "",
            why_unknown=why,
            learning_rate_key=scaled.learning_rate_key if scaled else "",
            learning_rate=scaled.learning_rate if scaled else None,
            cautions=tuple(self._cautions(winner, why)),
        )

    @property
    def _is_same_training(self) -> bool:
        return self.changes <= {Label.SAME_TRAINING}

    def _cautions(self, winner: Raced, why_unknown: str) -> Iterator[str]:
        label = "these values are labelled same training, but " if self._is_same_training else ""
        difference = winner.at_equal_samples
        if label and not why_unknown and difference is not None and difference.is_told:
            yield f"{label}its loss is {_direction(difference)} after equally many samples. {_CHECK_FOR}"
        elif winner.learning is Learning.MEMORISES:
            yield f"it overfitted in the race. {_CHECK_FOR}, also by a change labelled same training"
        if unequal := self._unequal_epochs(RaceArm.WINNER):
            yield f"{label}{unequal}"

    def _unequal_epochs(self, arm: RaceArm) -> str:
        baseline, other = (self._epoch_samples(side) for side in (RaceArm.BASELINE, arm))
        batch = max((leg.update_samples or 0.0 for legs in self.legs.values() for leg in legs.values()), default=0.0)
        # more than 2 % of an epoch, and more than a batch
        if baseline is None or other is None or abs(other - baseline) <= max(0.02 * baseline, 1.5 * batch):
            return ""
        return f"an epoch has {other:,.0f} samples instead of {baseline:,.0f}"

    def _epoch_samples(self, arm: RaceArm) -> float | None:
        sizes = self._known(arm, "epoch_samples")
        return median(sizes) if sizes else None

    def _known(self, arm: RaceArm, name: str) -> list[float]:
        return [figure for leg in self.legs[arm].values() if (figure := getattr(leg, name))]

    def _ratio(self, arm: RaceArm, name: str) -> float | None:
        other, baseline = self._known(arm, name), self._known(RaceArm.BASELINE, name)
        return median(other) / median(baseline) if other and baseline else None

    def _equal_s(self) -> float:
        times_s = [leg.trained_s for legs in self.legs.values() for leg in legs.values() if leg.curve is not None]
        if not times_s:
            return 0.0
        # a training below 80 % of the others' time was cut short
        return min(time_s for time_s in times_s if time_s >= 0.8 * median(times_s))

    def _why_unknown(self) -> str:
        """Return why the losses aren't comparable."""
        baseline, winner = self.legs[RaceArm.BASELINE], self.legs[RaceArm.WINNER]
        if RaceArm.BASELINE in self.diverged:
            return "the loss of today's config is not a number"
        for arm, name in ((RaceArm.BASELINE, "today's config"), (RaceArm.WINNER, "these values")):
            if arm in self.ended:
                trial = self.ended[arm]
                return f"the training with {name} ended early: {trial.ending.value}"
        has_curves = all(leg.curve for leg in (*baseline.values(), *winner.values()))
        if not has_curves and RaceArm.WINNER not in self.diverged:
            return "too few losses were reported in that time"
        if self._equal_s() < _LEAST_TRAINED_S:
            return "training ended before there was anything to compare"
        if self._is_summed():
            return "the loss seems to be a sum over the batch, so it grows with the batch"
        return ""

    def _is_summed(self) -> bool:
        loss, batch = self._ratio(RaceArm.WINNER, "first_loss"), self._ratio(RaceArm.WINNER, "update_samples")
        if not loss or not batch or loss <= 0.0 or max(batch, 1.0 / batch) < 1.4:
            return False
        # tolerance: 35 % of the ln ratio of the batches
        return abs(math.log(loss) - math.log(batch)) < 0.35 * abs(math.log(batch))

    def _raced(self, arm: RaceArm, why_unknown: str) -> Raced:
        if arm in self.diverged and RaceArm.BASELINE not in self.diverged:
            return Raced(learning=Learning.SLOWER, diverged=True)
        curves = self._curves(arm)
        if why_unknown or arm in self.ended or len(curves) < LEAST_ROUNDS:
            return Raced(learning=Learning.UNKNOWN)
        held_out, equal = self._held_out(arm), _after_samples(curves, 1.0)
        raced = self._by_held_out(arm, curves, held_out) if held_out else self._by_training(arm, curves, equal)
        return replace(raced, at_equal_samples=equal, evaluation_losses=self._evaluation_losses(arm))

    def _by_held_out(self, arm: RaceArm, curves: _Curves, held_out: _Curves) -> Raced:
        """Judge by evaluation losses; a much better training loss means overfitting."""
        time_s = _last_s(held_out)
        trained = _compared(curves, time_s)
        decided = _compared(held_out, time_s, noise=_speed_variance(curves, time_s))
        raced = replace(decided, at_equal_time=trained.at_equal_time, held_out=decided.at_equal_time)
        unexplained = self._beyond_explained(arm, curves)
        if decided.learning is Learning.SLOWER and trained.learning is Learning.FASTER:
            why = "its training loss is lower, its held-out loss higher"
            return replace(raced, learning=Learning.MEMORISES, why=why, learning_speed=None)
        if unexplained is not None and unexplained.high < 0.0:
            unseen = self._beyond_explained(arm, held_out, is_held_out=True)
            if unseen is None or unseen.high >= 0.0:
                why = f"{_IMPLAUSIBLY_LOW}, and its held-out loss is not lower"
                return replace(raced, learning=Learning.MEMORISES, why=why, learning_speed=None, needed_s=None)
        if Label.UNKNOWN in self.changes:  # a custom knob may improve learning per sample
            return raced
        explained = self._explained(arm)
        if raced.learning_speed is not None and raced.learning_speed > _PLAUSIBLE * explained:
            # a larger batch also has less gradient noise in the end, which may be all of the difference
            plausible = self._plausible(arm, raced, most=explained * max(_PLAUSIBLE, explained))
            return replace(plausible, learning_speed=None)
        return raced

    def _by_training(self, arm: RaceArm, curves: _Curves, equal: LossDifference | None) -> Raced:
        """Judge by the training loss alone."""
        raced = _compared(curves, self._equal_s())
        unexplained, passes = self._beyond_explained(arm, curves), self._passes(arm)
        unknown = replace(raced, learning=Learning.UNKNOWN, learning_speed=None, needed_s=None)
        is_resumed = any(leg.resumed for leg in self.legs[RaceArm.BASELINE].values())
        is_seen_again = is_resumed or passes is None or passes > _ONE_PASS
        if unexplained is not None and unexplained.high < 0.0:
            learning = Learning.MEMORISES if is_seen_again else Learning.UNKNOWN
            why = f"{_IMPLAUSIBLY_LOW}, and {self._no_held_out(arm)}"
            return replace(unknown, learning=learning, why=why)
        if self._is_same_training and equal is not None and equal.is_told:
            return replace(unknown, why=f"after equally many samples its loss is {_direction(equal)}")
        if raced.learning is Learning.SLOWER and (self._rate_ratio(arm) >= 1.0 or not is_seen_again):
            return raced  # even if it overfits more, with more samples
        if unequal := self._unequal_epochs(arm):
            return replace(unknown, why=f"{unequal}, and {self._no_held_out(arm)}")
        if is_seen_again:
            seen = "no end of an epoch was seen" if passes is None else f"the data were seen {passes:.1f} times"
            seen = "the checkpoint may have been trained on the same data" if is_resumed else seen
            return replace(unknown, why=f"{seen}, and {self._no_held_out(arm)}")
        return self._plausible(arm, raced, most=_PLAUSIBLE * self._explained(arm))

    def _no_held_out(self, arm: RaceArm) -> str:
        if any(leg.evaluation_loss is not None for side in (RaceArm.BASELINE, arm) for leg in self.legs[side].values()):
            return "not every training reached two evaluations; a longer race would decide"
        return 'no held-out loss is reported; report it with `mark("eval", loss=…)`, or use Keras validation data'

    def _explained(self, arm: RaceArm) -> float:
        """Return the learning speed explained by samples per second and more frequent updates."""
        return self._rate_ratio(arm) * self._more_updates(arm)

    def _plausible(self, arm: RaceArm, raced: Raced, *, most: float) -> Raced:
        if raced.learning is not Learning.FASTER or (raced.learning_speed or 0.0) <= most:
            return raced
        why = (
            f"it reached that loss {raced.learning_speed:.3g}x as fast with {self._rate_ratio(arm):.3g}x the samples "
            "per second, more than a batch or cache can explain"
        )
        return replace(raced, learning=Learning.UNKNOWN, learning_speed=None, why=why)

    def _rate_ratio(self, arm: RaceArm) -> float:
        pairs = [pair for pair in self._curves(arm) if pair[0].samples and pair[1].samples]
        rates = [[curve.samples[-1] / curve.ends_s[-1] for curve in pair] for pair in pairs]
        return median(other / baseline for baseline, other in rates if baseline) if rates else 1.0

    def _more_updates(self, arm: RaceArm) -> float:
        return max(1.0, 1.0 / (self._ratio(arm, "update_samples") or 1.0))

    def _passes(self, arm: RaceArm) -> float | None:
        """Return the most passes over the data by any training."""
        sizes = [size for side in (RaceArm.BASELINE, arm) if (size := self._epoch_samples(side))]
        trained = [curve.samples[-1] for pair in self._curves(arm) for curve in pair if curve.samples]
        return max(trained) / min(sizes) if sizes and trained else None

    def _held_out(self, arm: RaceArm) -> _Curves:
        pairs = self._curves(arm, "held_out")
        if len(pairs) < max(LEAST_ROUNDS, len(self.legs[RaceArm.BASELINE]), len(self.legs[arm])):
            return ()
        firsts_s = [curve.ends_s[0] for pair in pairs for curve in pair]
        time_s = _last_s(pairs)
        # evaluations must reach half of the time
        if time_s < 0.5 * self._equal_s() or max(firsts_s) > LATE * time_s:
            return ()
        return [(through_points(one), through_points(other)) for one, other in pairs]

    def _curves(self, arm: RaceArm, name: str = "curve") -> _Curves:
        baseline, others = self.legs[RaceArm.BASELINE], self.legs[arm]
        rounds = [(baseline[number], others[number]) for number in sorted(baseline) if number in others]
        pairs = [(getattr(one, name), getattr(other, name)) for one, other in rounds]
        return [pair for pair in pairs if None not in pair]

    def _evaluation_losses(self, arm: RaceArm) -> tuple[float, float] | None:
        sides = [[leg.evaluation_loss for leg in self.legs[side].values()] for side in (RaceArm.BASELINE, arm)]
        baseline, other = ([loss for loss in losses if loss is not None] for losses in sides)
        if len(baseline) + len(other) < sum(map(len, sides)) or not (baseline and other):
            return None
        return fmean(baseline), fmean(other)

    def _beyond_explained(self, arm: RaceArm, curves: _Curves, *, is_held_out: bool = False) -> LossDifference | None:
        """Compare after equally many samples or, for a smaller batch, updates."""
        return _after_samples(curves, self._more_updates(arm), is_held_out=is_held_out)


def _direction(difference: LossDifference) -> str:
    return "lower" if difference.high < 0.0 else "higher"


def _last_s(curves: _Curves) -> float:
    return min(curve.ends_s[-1] for pair in curves for curve in pair)


def _after_samples(curves: _Curves, factor: float, *, is_held_out: bool = False) -> LossDifference | None:
    curves = [pair for pair in curves if pair[0].samples and pair[1].samples]
    if len(curves) < LEAST_ROUNDS:
        return None
    samples = min(min(baseline.samples[-1] / factor, other.samples[-1]) for baseline, other in curves)
    if is_held_out and any(LATE * samples < other.samples[0] for _, other in curves):
        return None  # before the first evaluation
    levels = [(_level_after(baseline, factor * samples), _level_after(other, samples)) for baseline, other in curves]
    return _difference(levels, speed_variance=0.0)


def _level_after(curve: LossCurve, samples: float) -> LossLevel:
    return level_at(curve, time_of(curve, samples), from_s=time_of(curve, LATE * samples))


def _fall(curves: _Curves, time_s: float) -> float:
    return fmean(fall_at(baseline, time_s) for baseline, _ in curves)


def _speed_variance(curves: _Curves, time_s: float) -> float:
    return 2.0 * (_fall(curves, time_s) * 0.08) ** 2  # 0.08: between similar trainings, for short trials


def _compared(curves: _Curves, time_s: float, *, noise: float = 0.0) -> Raced:
    """Compare a config with the baseline after equal time.

    Args:
        noise: Minimum variance of their difference in a round.
    """
    levels = [(level_at(baseline, time_s), level_at(other, time_s)) for baseline, other in curves]
    difference = _difference(levels, speed_variance=max(noise, _speed_variance(curves, time_s)))
    learning = _learning(difference, tolerance=max(0.0, _fall(curves, time_s) * _EQUAL_LN_TIME))
    return Raced(
        learning=learning,
        at_equal_time=difference,
        after_s=time_s,
        learning_speed=_learning_speed(curves, difference, time_s),
        needed_s=_needed_s(difference, len(curves), time_s) if learning is Learning.UNKNOWN else None,
    )


def _difference(levels: Sequence[tuple[LossLevel, LossLevel]], *, speed_variance: float) -> LossDifference:
    errors = [(baseline.error or 0.0) ** 2 + (other.error or 0.0) ** 2 for baseline, other in levels]
    differences = [other.mean - baseline.mean for baseline, other in levels]
    # equal configs differ significantly in less than 2.5 % of cases, on either side
    mean, half = moderated_interval(differences, fmean(errors) + speed_variance, 2.0, 0.975)
    return LossDifference(
        today=fmean(baseline.mean for baseline, _ in levels),
        other=fmean(other.mean for _, other in levels),
        low=mean - half,
        high=mean + half,
    )


def _learning(difference: LossDifference, *, tolerance: float) -> Learning:
    if difference.is_told:
        return Learning.FASTER if difference.high < 0.0 else Learning.SLOWER
    return Learning.ALIKE if max(-difference.low, difference.high) <= tolerance else Learning.UNKNOWN


def _learning_speed(curves: _Curves, difference: LossDifference, time_s: float) -> float | None:
    is_ahead = difference.other < difference.today
    ahead = [other if is_ahead else baseline for baseline, other in curves]
    reached_s = time_to(ahead, difference.today if is_ahead else difference.other, time_s)
    if reached_s is None:
        return None
    reached_s = max(reached_s, *(curve.ends_s[0] for curve in ahead))
    return time_s / reached_s if is_ahead else reached_s / time_s


def _needed_s(difference: LossDifference, rounds: int, time_s: float) -> float | None:
    mean, half = (difference.low + difference.high) / 2.0, (difference.high - difference.low) / 2.0
    if not mean:
        return None
    needed_s = 2 * time_s * max(rounds + 2, math.ceil(rounds * (half / mean) ** 2))
    return needed_s if needed_s <= _LONGEST_NEEDED_S else None
