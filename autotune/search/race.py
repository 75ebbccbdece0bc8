"""Race: trains the answer and the baseline alternately for equal time, to compare their losses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from autotune.clock import format_duration
from autotune.errors import AutotuneError
from autotune.measure.loss_curves import evaluation_curve, loss_curve
from autotune.records import NO_LOSS, Ending, Purpose, RaceArm, RaceLeg, Scalar, TraineeEvent, TrialRecord, Values
from autotune.search.parts import SearchParts
from autotune.search.schedule import CAUTION, RACES_FROM_S, STOPPING_S, expected_start_s, race_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import CUT_SHORT, SearchStage, TrialMaker
from autotune.space.catalog import is_count
from autotune.space.knob import Label, is_number, key_name, same_scalar
from autotune.space.space import effective_batch_ratio
from autotune.trial.execution import Execution, TrialSpec
from autotune.trial.outcome import EPOCH_END, EVALUATION
from autotune.trial.protection import CheckpointCopy, copy_newest_checkpoint

_ROUNDS, _FEWEST_ROUNDS = 4, 2
_LONG_S = 20.0  # fewer rounds are better than shorter trainings
_LEAST_S = 5.0
_OTHER_BATCH = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """Config in the race, with its learning rate."""

    arm: RaceArm
    values: Values
    rate_key: str = ""
    rate: float | None = None


class Racer(SearchStage):
    """Racer of the answer of a search.

    Attributes:
        why_not: Why an answer that changes the training was not raced.
    """

    def __init__(self, parts: SearchParts, state: SearchState, trials: TrialMaker) -> None:
        super().__init__(parts, state, trials)
        self._wanted_s = race_s(parts.options.race_s, parts.budget.budget_s)
        self._copy: CheckpointCopy | None = None
        self._resumes = False
        self.why_not = ""

    def needed_s(self, values: Values | None) -> float:
        return 0.0 if values is None or self._why_not(values) else self._wanted_s

    def race(self, values: Values) -> None:
        """Train the baseline and a point alternately, from a copy of the newest checkpoint if possible."""
        self.why_not = self._why_not(values)
        if self.why_not:
            return
        arms = self._arms(values)
        time_s = min(self._wanted_s, self._parts.budget.left_s() - STOPPING_S)
        overhead_s = CAUTION * (expected_start_s(self._state.trials.own) + STOPPING_S)
        rounds, trains_s = _ROUNDS, time_s / (_ROUNDS * len(arms)) - overhead_s
        if trains_s < _LONG_S:
            rounds, trains_s = _FEWEST_ROUNDS, time_s / (_FEWEST_ROUNDS * len(arms)) - overhead_s
        if trains_s < _LEAST_S:
            self.why_not = f"{format_duration(max(0.0, time_s))} is left, too little for {len(arms) * rounds} trainings"
            return
        scaled = next((f", also with {arm.rate_key} {arm.rate:g}" for arm in arms if arm.rate is not None), "")
        each = f"{rounds} trainings of {format_duration(trains_s)} each, to compare losses"
        self._events.change_phase("racing", f"{each}: today's config and the best{scaled}")
        problem = self._parts.problem
        into = problem.state.searches / f"{self._parts.name}.checkpoint"
        copy = copy_newest_checkpoint(problem.trainer, into, times=rounds * len(arms))
        if isinstance(copy, CheckpointCopy):
            self._copy = copy
        elif copy:
            self._begin_from_scratch(copy)
        try:
            self._train_all(arms, rounds, trains_s)
        finally:
            if isinstance(copy, CheckpointCopy):
                copy.discard()

    def _why_not(self, values: Values) -> str:
        if self._parts.options.race_s == 0.0:
            return "it was disabled with --no-race"
        if self._state.scratch_loss is None:
            return NO_LOSS
        if self._parts.options.race_s is None and not self._changes_training(values):
            return "without --race, only a change of batch or precision is raced"
        if not self._wanted_s:
            return f"a search of less than {format_duration(RACES_FROM_S)} races only with --race"
        return ""

    def _changes_training(self, values: Values) -> bool:
        knobs = self._state.model.space.knobs
        changed = [knob for knob in knobs if not same_scalar(values[knob.path], knob.baseline)]
        labels = {knob.label_of(values[knob.path]) for knob in changed}
        is_other_batch = abs(math.log(effective_batch_ratio(knobs, values))) > _OTHER_BATCH
        return is_other_batch or not labels.isdisjoint((Label.BATCH, Label.PRECISION))

    def _arms(self, values: Values) -> list[_Arm]:
        """Return the configs to race; the winner also with a scaled learning rate if a key sets it."""
        space = self._state.model.space
        arms = [_Arm(arm=RaceArm.BASELINE, values=space.baseline), _Arm(arm=RaceArm.WINNER, values=values)]
        ratio = effective_batch_ratio(space.knobs, values)
        rate = learning_rate(self._parts.problem.settings.scalars)
        if rate is not None and abs(math.log(ratio)) > _OTHER_BATCH:
            arms.append(_Arm(arm=RaceArm.SCALED, values=values, rate_key=rate.path, rate=rate.scaled(ratio)))
        return arms

    def _train_all(self, arms: Sequence[_Arm], rounds: int, trains_s: float) -> None:
        """Run all rounds, every other one in reverse order."""
        diverged: set[RaceArm] = set()
        for pair in range(rounds):
            for arm in arms if pair % 2 == 0 else reversed(arms):
                if arm.arm in diverged:
                    continue
                record = self._train(arm, pair, trains_s)
                if record.race is None:
                    self.why_not = f"its trainings were cut short: {record.ending.value}"
                    return
                if record.ending is Ending.DIVERGED:
                    if arm.arm is not RaceArm.SCALED:
                        return  # the race is lost, or has no baseline
                    diverged.add(arm.arm)

    def _train(self, arm: _Arm, pair: int, trains_s: float) -> TrialRecord:
        """Run one training; give up the checkpoint if the first does not resume from it."""
        record = self._run_leg(arm, pair, trains_s)
        if self._copy is None or self._resumes or record.race is None:
            return record
        self._resumes = record.race.resumed and record.race.curve is not None
        if self._resumes:
            return record
        name = self._copy.name
        if record.race.curve is not None:
            self._begin_from_scratch(f"the trainer does not resume from a copy of {name}")
            return record
        self._begin_from_scratch(f"with a copy of {name} training ends at once")
        return self._run_leg(arm, pair, trains_s)

    def _begin_from_scratch(self, why: str) -> None:
        self._copy = None
        self._events.change_phase("racing", f"from scratch: {why}")

    def _copy_checkpoint(self, outputs: Path) -> None:
        """Copy the checkpoint into a training's folder; start from scratch without space for it."""
        if self._copy is not None:
            try:
                self._copy.put_into(outputs)
            except AutotuneError as error:
                self._begin_from_scratch(error.message)

    def _run_leg(self, arm: _Arm, pair: int, trains_s: float) -> TrialRecord:
        seeded = seed(self._parts.problem.settings.scalars)
        rate: dict[str, Scalar] = {arm.rate_key: arm.rate} if arm.rate_key else {}
        leg = RaceLeg(
            arm=arm.arm,
            pair=pair,
            trained_s=trains_s,
            curve=None,
            seed=seeded[1] + pair if seeded else None,
            learning_rate_key=arm.rate_key,
            learning_rate=arm.rate,
            checkpoint=self._copy.name if self._copy else "",
        )
        return self._trials.make_once(
            TrialSpec(
                values=arm.values,
                purpose=Purpose.RACE,
                trains_s=trains_s,
                keys={**({seeded[0]: leg.seed} if seeded else {}), **rate},
                tried_keys=rate,
            ),
            judge=lambda done: _leg_result(leg, done, self._state.scratch_loss),
            fill_outputs=self._copy_checkpoint,
        )


def _leg_result(leg: RaceLeg, done: Execution, scratch_loss: float | None) -> RaceLeg | None:
    """Return the results of a training; None if it was cut short."""
    if done.ending in CUT_SHORT:
        return None
    (curve, first), passed = loss_curve(done.events, leg.trained_s), done.milestones
    losses = [event.loss for event in done.events if event.kind == EVALUATION and event.loss is not None]
    return replace(
        leg,
        trained_s=min(passed.trained_s, leg.trained_s),
        curve=curve,
        first_loss=first,
        # A resumed training starts far below the first loss from scratch.
        resumed=bool(leg.checkpoint and first is not None and scratch_loss and first < 0.9 * scratch_loss),
        update_samples=passed.samples / passed.updates if passed.samples and passed.updates else None,
        epoch_samples=_epoch_samples(done.events),
        evaluation_loss=losses[-1] if losses and math.isfinite(losses[-1]) else None,
        held_out=evaluation_curve(done.events, leg.trained_s),
    )


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


_LEARNING_RATE = re.compile(r"(?:.*_)?(?:learning_?rate|(?:base|init|initial|max|peak)?_?lr)")
_MAIN_LEARNING_RATE = ("learning_rate", "lr")
_OTHER_RATE = re.compile(r".*(?:decay|discriminator|disc|end|eta_min|final|min|schedule|start|warm_?up).*")
_SEED = re.compile(r"(?:global_|manual_|random_|rng_|torch_|np_|numpy_|tf_)*seed(?:_value)?|random_state")
_OPTIMIZER = re.compile(r"(?:.*_)?optim(?:izer)?(?:_(?:name|type))?")
_LINEAR = re.compile(r"(?:.*\W)?(?:sgd|momentum|nesterov|lars|gradientdescent)(?:\W.*)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Learning rate of a config.

    Attributes:
        is_linear: Whether it scales linearly with the batch, as for SGD (Goyal et al., "Accurate, large minibatch SGD",
            2017); else with the square root, as for Adam (Malladi et al., "On the SDEs and scaling rules for adaptive
            gradient algorithms", 2022).
    """

    path: str
    value: float
    is_linear: bool

    def scaled(self, batch_ratio: float) -> float:
        """Return the rate for a relative batch size, to three digits."""
        factor = batch_ratio if self.is_linear else math.sqrt(batch_ratio)
        return float(f"{self.value * factor:.3g}")


def learning_rate(scalars: Values) -> LearningRate | None:
    """Return the learning rate of a config; None if no or several keys may set it."""
    numbers = ((path, float(value)) for path, value in scalars.items() if is_number(value) and value > 0)
    named = ((path, value) for path, value in numbers if _LEARNING_RATE.fullmatch(key_name(path)))
    found = {path: value for path, value in named if not _OTHER_RATE.fullmatch(path.lower())}
    main = [path for path in found if key_name(path) in _MAIN_LEARNING_RATE]
    chosen = main if len(main) == 1 else list(found)
    if len(chosen) != 1:
        return None
    return LearningRate(path=chosen[0], value=found[chosen[0]], is_linear=_is_linear(scalars))


def seed(scalars: Values) -> tuple[str, int] | None:
    """Return the key of the training's seed and its value; None if no or several keys may set it."""
    named = ((path, value) for path, value in scalars.items() if _SEED.fullmatch(key_name(path)))
    found = [(path, value) for path, value in named if is_count(value) and value < 2**31]
    return found[0] if len(found) == 1 else None


def _is_linear(scalars: Values) -> bool:
    for path, value in scalars.items():
        parts = path.lower().split(".")
        is_name = parts[-1] in ("name", "type", "_target_", "class") or _OPTIMIZER.fullmatch(key_name(path))
        if is_name and any(map(_OPTIMIZER.fullmatch, parts)) and isinstance(value, str) and _LINEAR.fullmatch(value):
            return True
    return False
