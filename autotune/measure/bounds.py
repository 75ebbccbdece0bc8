"""Bounds of what changes can gain, from one trial that was taken through phases.

With the data free, training is as fast as the step; with the step free, as fast as the loader. So a change of the
input alone gains at most the first ratio, and a change of the step alone at most the second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from autotune.measure.phases import PhasedTrial
from autotune.measure.speed_ratio import ratio_of
from autotune.records import Scalar, TrialPhase
from autotune.results import Ratio

CANNOT_MATTER = 1.02
"""Gain below which a bound says that a change cannot matter; points that differ by less cannot be told apart."""

FREE_DATA, FREE_STEP = "free data, speed over today's", "free step, speed over today's"
"""Conditions of a trial that was taken through phases, with the two ratios."""

HIGH = ", at most"
"""Behind the name of either: the upper end of its interval."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Speeds of training, of the step alone and of the loader alone, and the ratios between them.

    Attributes:
        free_data: Speed with data that costs nothing over that of training; None if it was not measured.
        free_step: Speed of the loader alone over that of training; None if it was not measured.
        speeds: Median speed in each phase, in samples per second, or batches.
        counts_samples: Whether these are samples.
        cores: Cores that the trial kept busy in each phase; phases in which that is not known are missing.
        batch: Samples in a step, 1 where speeds are batches; None if it is not known.
        wait_s: Time that a step of training waited for data; None if it is not known.
        why_not: Reasons for which a phase could not be made.
    """

    free_data: Ratio | None
    free_step: Ratio | None
    speeds: Mapping[TrialPhase, float]
    counts_samples: bool
    cores: Mapping[TrialPhase, float]
    batch: float | None = None
    wait_s: float | None = None
    why_not: tuple[str, ...] = ()

    def may_gain(self, *, on_step: bool) -> bool:
        """Return whether a change of the step alone, or of the input alone, may gain something worth having."""
        bound = self.free_step if on_step else self.free_data
        return bound is None or bound.high > CANNOT_MATTER


def bounds_as_conditions(bounds: Bounds) -> dict[str, Scalar]:
    """Return the bounds as scalars of a trial's record; unknown ones are left out."""
    sides = {FREE_DATA: bounds.free_data, FREE_STEP: bounds.free_step}
    return {
        f"{name}{end}": value
        for name, ratio in sides.items()
        if ratio is not None
        for end, value in (("", ratio.ratio), (HIGH, ratio.high))
    }


def bounds_of(trial: PhasedTrial, cpu_cores: Callable[[float, float], float | None]) -> Bounds:
    """Return the bounds that a phased trial shows.

    Args:
        trial: The trial.
        cpu_cores: Returns the cores that it kept busy between two times; None if that is not known.
    """
    train, load, replay = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
    speeds = {
        phase: median(found)
        for phase in TrialPhase
        if (found := [one.speeds[phase] for one in trial.rounds if phase in one.speeds])
    }
    cores = {}
    for phase in TrialPhase:
        known = [used for span in trial.spans(phase) if (used := cpu_cores(*span)) is not None]
        if known:
            cores[phase] = fmean(known)
    batches = [one.batch for one in trial.rounds if one.batch is not None]
    waits_s = [one.wait_s for one in trial.rounds if one.wait_s is not None]
    return Bounds(
        free_data=ratio_of(trial.pairs(replay, train)),
        free_step=ratio_of(trial.pairs(load, train)),
        speeds=speeds,
        counts_samples=trial.counts_samples,
        cores=cores,
        batch=fmean(batches) if batches else None,
        wait_s=fmean(waits_s) if waits_s else None,
        why_not=tuple(trial.why_not),
    )
