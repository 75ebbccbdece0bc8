"""Racer: trains the answer and today's config in turn, for equal time, so that their losses can be compared.

Whatever makes more samples a second may learn less from each: another batch, another precision. Read `Racer.race`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import format_duration
from autotune.errors import AutotuneError
from autotune.records import Ending, Purpose, RaceArm, Scalar, TrialRecord, Values
from autotune.search.parts import Narrator, SearchParts
from autotune.search.race_leg import PlannedLeg
from autotune.search.schedule import CAUTION, RACES_FROM_S, STOPPING_S, expected_start_s, race_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from autotune.space.knob import Label, is_number, key_name, same_scalar
from autotune.space.space import effective_batch_ratio
from autotune.trial.protect import CheckpointCopy, copy_newest_checkpoint

_ROUNDS, _FEWEST_ROUNDS = 4, 2
_LONG_S = 20.0  # a training that is shorter shows little: rather fewer rounds
_LEAST_S = 5.0
_OTHER_BATCH = 1e-9
_RACED = (Label.BATCH, Label.PRECISION)


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """Config that takes part."""

    arm: RaceArm
    values: Values
    rate: LearningRate | None = None
    scaled: float | None = None


class Racer:
    """Racer of the answer of a search.

    Args:
        asked_s: Time that was asked for; 0 for no race, None for one where it is called for.

    Attributes:
        why_not: Reason for which the answer was not raced, though it changes the batch or the precision; empty else.
    """

    def __init__(
        self, parts: SearchParts, state: SearchState, trials: TrialMaker, narrator: Narrator, *, asked_s: float | None
    ) -> None:
        self._parts = parts
        self._state = state
        self._trials = trials
        self._narrator = narrator
        self._asked_s = asked_s
        self._copy: CheckpointCopy | None = None
        self._resumes = False
        self.why_not = ""

    def _changes_training(self, values: Values) -> bool:
        knobs = self._state.space.knobs
        if abs(math.log(effective_batch_ratio(knobs, values))) > _OTHER_BATCH:
            return True
        return any(knob.label in _RACED and not same_scalar(values[knob.path], knob.baseline) for knob in knobs)

    def needed_s(self, values: Values | None) -> float:
        """Return the time to keep for the race of the point that is best now; None stands for no such point."""
        if values is None or self._why_not(values):
            return 0.0
        return self._wanted_s

    def race(self, values: Values) -> None:
        """Train today's config and a point in turn; what they show is in the record.

        The first training of today's config shows whether the trainer goes on from a copy of the user's newest
        checkpoint. If it does not, all begin from scratch.
        """
        self.why_not = self._why_not(values)
        if self.why_not:
            return
        arms = self._arms(values)
        time_s = min(self._wanted_s, self._parts.budget.left_s() - STOPPING_S)
        rounds, trains_s = self._plan(time_s, len(arms))
        if trains_s < _LEAST_S:
            self.why_not = f"{format_duration(max(0.0, time_s))} is left, too little for {len(arms) * rounds} trainings"
            return
        self._narrator.tell_phase("racing", self._plan_in_words(arms, rounds, trains_s))
        copy = self._find_checkpoint(legs=rounds * len(arms))
        try:
            self._train_all(arms, rounds, trains_s)
        finally:
            if copy:
                copy.discard()

    def _train_all(self, arms: Sequence[_Arm], rounds: int, trains_s: float) -> None:
        diverged: set[RaceArm] = set()
        for pair, arm in _order(rounds, arms):
            if arm.arm in diverged:
                continue
            record = self._train(arm, pair, trains_s)
            if record.race is None:
                self.why_not = f"its trainings were cut short: {record.ending.value}"
                return
            if record.ending is Ending.DIVERGED:
                if arm.arm is not RaceArm.SCALED:
                    return  # it has lost, or there is nothing to compare with
                diverged.add(arm.arm)

    @property
    def _first_loss(self) -> float | None:
        losses = self._trials.baseline_losses
        return losses.first if losses else None

    @property
    def _wanted_s(self) -> float:
        return race_s(self._asked_s, self._parts.budget.budget_s)

    def _why_not(self, values: Values) -> str:
        if self._asked_s == 0.0:
            return "that was left out with --no-race"
        if self._asked_s is None and not self._changes_training(values):
            return "it is the same training"
        if not self._wanted_s:
            return f"a search of less than {format_duration(RACES_FROM_S)} races only with --race"
        if self._first_loss is None:
            return "the trainer reports no loss that can be seen"
        return ""

    def _arms(self, values: Values) -> list[_Arm]:
        """Return the configs that take part: the winner also with its learning rate scaled, where a key says it."""
        arms = [_Arm(arm=RaceArm.BASELINE, values=self._state.space.baseline), _Arm(arm=RaceArm.WINNER, values=values)]
        ratio = effective_batch_ratio(self._state.space.knobs, values)
        rate = learning_rate(self._parts.problem.settings.scalars)
        if rate is not None and abs(math.log(ratio)) > _OTHER_BATCH:
            arms.append(_Arm(arm=RaceArm.SCALED, values=values, rate=rate, scaled=rate.scaled(ratio)))
        return arms

    def _plan(self, time_s: float, arms: int) -> tuple[int, float]:
        """Return the number of rounds and the length of each training that fit into a time."""
        overhead_s = CAUTION * (expected_start_s(self._state.trials) + STOPPING_S)
        lengths_s = {rounds: time_s / (rounds * arms) - overhead_s for rounds in (_ROUNDS, _FEWEST_ROUNDS)}
        rounds = _ROUNDS if lengths_s[_ROUNDS] >= _LONG_S else _FEWEST_ROUNDS
        return rounds, lengths_s[rounds]

    def _plan_in_words(self, arms: Sequence[_Arm], rounds: int, trains_s: float) -> str:
        scaled = next((f", also with {arm.rate.path} {arm.scaled:g}" for arm in arms if arm.rate), "")
        return (
            f"{rounds} times {format_duration(trains_s)} of training each, for the loss: today's config and the best"
            f"{scaled}"
        )

    def _find_checkpoint(self, *, legs: int) -> CheckpointCopy | None:
        problem = self._parts.problem
        into = problem.state.searches / f"{self._parts.name}.checkpoint"
        found = copy_newest_checkpoint(problem.trainer, into, times=legs)
        if isinstance(found, CheckpointCopy):
            self._copy = found
        elif found.why:
            self._narrator.tell_phase("racing", f"from scratch: {found.why}")
        return self._copy

    def _fill(self, outputs: Path) -> None:
        """Put the checkpoint into the folder of a training; without room for it all begin from scratch."""
        if self._copy is None:
            return
        try:
            self._copy.put_into(outputs)
        except AutotuneError as error:
            self._copy = None
            self._narrator.tell_phase("racing", f"from scratch: {error.message}")

    def _train(self, arm: _Arm, pair: int, trains_s: float) -> TrialRecord:
        """Make one training; where the first does not go on from the checkpoint, no further one is given that."""
        record = self._make(arm, pair, trains_s)
        if self._copy is None or self._resumes or record.race is None:
            return record
        self._resumes = record.race.resumed and record.race.curve is not None
        if self._resumes:
            return record
        name, self._copy = self._copy.name, None
        if record.race.curve is not None:
            self._narrator.tell_phase("racing", f"from scratch: the trainer does not go on from a copy of {name}")
            return record
        self._narrator.tell_phase("racing", f"from scratch: with a copy of {name} training ends at once")
        return self._make(arm, pair, trains_s)

    def _make(self, arm: _Arm, pair: int, trains_s: float) -> TrialRecord:
        leg = self._leg(arm, pair, trains_s)
        return self._trials.make_once(PlannedTrial(values=arm.values, purpose=Purpose.RACE, leg=leg))

    def _leg(self, arm: _Arm, pair: int, trains_s: float) -> PlannedLeg:
        seeded = seed(self._parts.problem.settings.scalars)
        keys: dict[str, Scalar] = {seeded[0]: seeded[1] + pair} if seeded else {}
        if arm.rate is not None:
            keys[arm.rate.path] = arm.scaled
        return PlannedLeg(
            arm=arm.arm,
            pair=pair,
            trains_s=trains_s,
            keys=keys,
            seed=seeded[1] + pair if seeded else None,
            learning_rate_key=arm.rate.path if arm.rate else "",
            learning_rate=arm.scaled,
            checkpoint=self._copy.name if self._copy else "",
            scratch_loss=self._first_loss,
            fill_outputs=self._fill,
        )


def _order(rounds: int, arms: Sequence[_Arm]) -> Iterator[tuple[int, _Arm]]:
    """Yield the trainings of each round, every other round in the opposite order."""
    for pair in range(rounds):
        for arm in arms if pair % 2 == 0 else reversed(arms):
            yield pair, arm


_LEARNING_RATE = re.compile(r"(?:.*_)?(?:learning_?rate|(?:base|init|initial|max|peak)?_?lr)")
_MAIN_LEARNING_RATE = ("learning_rate", "lr")
_OTHER_RATE = re.compile(r".*(?:decay|discriminator|disc|end|eta_min|final|min|schedule|start|warm_?up).*")
_SEED = re.compile(r"(?:global_|manual_|random_|rng_|torch_|np_|numpy_|tf_)*seed(?:_value)?|random_state")
_OPTIMIZER = re.compile(r"(?:.*_)?optim(?:izer)?(?:_(?:name|type))?")
_LINEAR = re.compile(r"(?:.*\W)?(?:sgd|momentum|nesterov|lars|gradientdescent)(?:\W.*)?", re.IGNORECASE)
_LARGEST_SEED = 2**31


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Learning rate of a config.

    Attributes:
        is_linear: Whether it is scaled linearly with the batch, as of SGD (Goyal et al., "Accurate, large minibatch
            SGD", 2017); else with its square root, as of Adam and its kin (Malladi et al., "On the SDEs and scaling
            rules for adaptive gradient algorithms", 2022), and where the optimizer is not known.
    """

    path: str
    value: float
    is_linear: bool

    def scaled(self, batch_ratio: float) -> float:
        """Return the rate that belongs to a batch of so many times the size, to three digits."""
        factor = batch_ratio if self.is_linear else math.sqrt(batch_ratio)
        return float(f"{self.value * factor:.3g}")


def learning_rate(scalars: Values) -> LearningRate | None:
    """Return the learning rate of a config; None where no key says it, or several may.

    Args:
        scalars: The values of the config by dotted path.
    """
    found = {
        path: float(value)
        for path, value in scalars.items()
        if isinstance(value, int | float)
        and is_number(value)
        and value > 0
        and _LEARNING_RATE.fullmatch(key_name(path))
        and not _OTHER_RATE.fullmatch(path.lower())
    }
    main = [path for path in found if key_name(path) in _MAIN_LEARNING_RATE]
    chosen = main if len(main) == 1 else list(found)
    if len(chosen) != 1:
        return None
    return LearningRate(path=chosen[0], value=found[chosen[0]], is_linear=_is_linear(scalars))


def seed(scalars: Values) -> tuple[str, int] | None:
    """Return the key of a config that seeds training, and its value; None where no key does, or several do.

    Args:
        scalars: The values of the config by dotted path.
    """
    found = [
        (path, value)
        for path, value in scalars.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and 0 <= value < _LARGEST_SEED
        and _SEED.fullmatch(key_name(path))
    ]
    return found[0] if len(found) == 1 else None


def _is_linear(scalars: Values) -> bool:
    """Return whether the optimizer is known to be one whose rate goes linearly with the batch."""
    names: list[Scalar] = [
        value
        for path, value in scalars.items()
        if any(_OPTIMIZER.fullmatch(part) for part in path.lower().split("."))
        and (
            path.lower().split(".")[-1] in ("name", "type", "_target_", "class") or _OPTIMIZER.fullmatch(key_name(path))
        )
    ]
    return any(isinstance(name, str) and _LINEAR.fullmatch(name) for name in names)
