"""Leg of a race: one training of it, as it is planned, and what it shows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from autotune.measure.loss_curves import evaluation_curve, loss_curve
from autotune.records import Ending, RaceArm, RaceLeg, Scalar, TraineeEvent
from autotune.trial.execution import Execution
from autotune.trial.outcome import EPOCH_END, EVALUATION

_OURS = (Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED, Ending.GPU_LOST)
"""Endings that say nothing about the config."""

_RESUMED = 0.9


@dataclass(frozen=True, kw_only=True)
class PlannedLeg:
    """Training of one config in a race, as it is planned.

    Attributes:
        trains_s: Time from its first step for which it trains.
        keys: Further keys of the config that it sets: the seed, the learning rate.
        seed: The seed among them; None without.
        learning_rate_key: The key of the learning rate among them; empty without.
        learning_rate: The learning rate; None without.
        checkpoint: Name of the checkpoint that it is given a copy of; empty without.
        scratch_loss: First loss of today's config from scratch; None where it is not known.
        fill_outputs: Puts the copy into the folder of its outputs.
    """

    arm: RaceArm
    pair: int
    trains_s: float
    keys: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int | None = None
    learning_rate_key: str = ""
    learning_rate: float | None = None
    checkpoint: str = ""
    scratch_loss: float | None = None
    fill_outputs: Callable[[Path], None] = lambda _outputs: None

    @property
    def proposed_rate(self) -> Mapping[str, Scalar]:
        """The learning rate that it tries, by its key; empty where that of the config stays."""
        return {} if self.learning_rate is None else {self.learning_rate_key: self.learning_rate}

    def leg(self, done: Execution) -> RaceLeg | None:
        """Return what this training has shown; None if it was cut short by something else."""
        if done.ending in _OURS:
            return None
        curve, first = loss_curve(done.events, self.trains_s)
        passed = done.milestones
        return RaceLeg(
            arm=self.arm,
            pair=self.pair,
            trained_s=min(passed.trained_s, self.trains_s),
            curve=curve,
            first_loss=first,
            seed=self.seed,
            learning_rate_key=self.learning_rate_key,
            learning_rate=self.learning_rate,
            checkpoint=self.checkpoint,
            resumed=self._has_resumed(first),
            update_samples=passed.samples / passed.updates if passed.samples and passed.updates else None,
            epoch_samples=_epoch_samples(done.events),
            evaluation_loss=_evaluation_loss(done.events),
            held_out=evaluation_curve(done.events, self.trains_s),
        )

    def _has_resumed(self, first_loss: float | None) -> bool:
        """Return whether it went on from the checkpoint: its loss begins far below where it begins from scratch."""
        if not self.checkpoint or first_loss is None or self.scratch_loss is None:
            return False
        return first_loss < _RESUMED * self.scratch_loss


def _evaluation_loss(events: Sequence[TraineeEvent]) -> float | None:
    losses = [event.loss for event in events if event.kind == EVALUATION and event.loss is not None]
    return losses[-1] if losses and math.isfinite(losses[-1]) else None


def _epoch_samples(events: Sequence[TraineeEvent]) -> float | None:
    at_ends, samples = [0.0], 0.0
    for event in events:
        if event.kind == "step":
            if event.samples is None:
                return None
            samples += event.samples
        elif event.kind == EPOCH_END:
            at_ends.append(samples)
    lengths = [after - before for before, after in pairwise(at_ends) if after > before]
    return median(lengths[1:] or lengths) if lengths else None
