"""Validator: trains a confirmed point, and today's config before it, for as long as a real training shows itself."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autotune.clock import format_duration
from autotune.measure.window import growth_bytes_per_s
from autotune.records import DISTURBED, Ending, Machine, Purpose, SearchResult, TrialRecord, Validation, Values
from autotune.search.parts import Narrator, SearchParts
from autotune.search.schedule import CAUTION, STOPPING_S, expected_start_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from autotune.trial.execution import Execution
from autotune.trial.outcome import CHECKPOINT, EPOCH_END, EVALUATION


class Validator:
    """Validator of the points that a search has confirmed.

    Args:
        longest_s: Longest training of each validation trial.

    Attributes:
        has_broken: True if a point broke: the next is no answer before it is validated.
    """

    def __init__(
        self, parts: SearchParts, state: SearchState, trials: TrialMaker, narrator: Narrator, *, longest_s: float
    ) -> None:
        self._parts = parts
        self._state = state
        self._trials = trials
        self._narrator = narrator
        self._longest_s = longest_s
        self._baseline: Execution | None = None
        self.has_broken = False

    @property
    def needed_s(self) -> float:
        """Time that the next validation takes at most: of a point, and of today's config before the first."""
        trials = 1 if self._baseline else 2
        return trials * (self._longest_s + CAUTION * (expected_start_s(self._state.trials) + STOPPING_S))

    def validate(self, result: SearchResult) -> bool:
        """Train the best point of an answer, and today's config before the first.

        Args:
            result: The answer so far: better.

        Returns:
            Whether that is the answer: True unless the point broke.
        """
        assert result.best is not None, "what is better has values"
        assert result.speedup is not None, "what is better was confirmed"
        left_s = self._parts.budget.left_s()
        if left_s < self.needed_s:
            self._give_up(f"{format_duration(max(0.0, left_s))} is left, and it takes {format_duration(self.needed_s)}")
            return True
        self._narrator.tell_phase("validating", f"training for up to {format_duration(self._longest_s)} each")
        if self._baseline is None:
            self._baseline = self._train_baseline()
        if self._baseline is None:
            self._give_up("the training of today's config was cut short")
            return True
        record = self._train(result.best.values, self._baseline, speedup=result.speedup.ratio)
        if record.validation is None:
            self._give_up(f"its training was cut short: {record.ending.value}")
        broke = record.validation is not None and bool(record.validation.broke)
        self.has_broken |= broke
        return not broke

    def _train_baseline(self) -> Execution | None:
        seen: list[Execution] = []

        def note(done: Execution) -> Validation | None:
            seen.append(done)
            return findings_alone(done)

        record = self._trials.make_once(self._planned(self._parts.problem.space.baseline, note))
        return seen[0] if record.validation else None

    def _train(self, values: Values, baseline: Execution, *, speedup: float) -> TrialRecord:
        basis = ValidationBasis(
            baseline=baseline, speedup=speedup, sd=self._state.sd, machine=self._parts.problem.machine
        )
        return self._trials.make_once(self._planned(values, lambda done: judge_validation(done, basis)))

    def _planned(self, values: Values, judge: Callable[[Execution], Validation | None]) -> PlannedTrial:
        return PlannedTrial(values=values, purpose=Purpose.VALIDATE, validate_s=self._longest_s, judge=judge)

    def _give_up(self, why: str) -> None:
        self._narrator.tell_phase("ending", f"the answer is not validated: {why}")


_WELL = (Ending.COMPLETED, Ending.STOPPED)
_OURS = (Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED, Ending.GPU_LOST)
"""Endings that say nothing about the point."""

_FULL_WITHIN_S = 24 * 3600.0
_AS_FAR = 0.9  # of the samples of today's config
_LEAST_EXCESS = 0.1  # of the loss that training begins with
_LOSS_ERRORS = 3.0  # standard errors
_NOUNS: Mapping[str, str] = {EPOCH_END: "end of an epoch", EVALUATION: "evaluation", CHECKPOINT: "checkpoint"}
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ValidationBasis:
    """Facts that a validation trial is judged by.

    Attributes:
        baseline: Validation trial of today's config.
        speedup: Speed of the point over today's, as it was confirmed.
        sd: Standard deviation of ln speed between trials of one point.
        machine: The machine, whose memory may run full.
    """

    baseline: Execution
    speedup: float
    sd: float
    machine: Machine


def findings_alone(done: Execution) -> Validation | None:
    """Return what a validation trial shows by itself, as that of the baseline; None if it was cut short."""
    if done.ending in _OURS:
        return None
    host, gpu = done.memory
    return Validation(
        trained_s=done.milestones.trained_s,
        epoch_ends=done.milestones.reached[EPOCH_END],
        evaluations=done.milestones.reached[EVALUATION],
        checkpoints=done.milestones.reached[CHECKPOINT],
        memory_growth_bytes_per_s=growth_bytes_per_s(host),
        gpu_memory_growth_bytes_per_s=growth_bytes_per_s(gpu),
    )


def judge_validation(done: Execution, basis: ValidationBasis) -> Validation | None:
    """Judge the validation trial of a confirmed point.

    Returns:
        The findings; None if the trial was cut short by something else.
    """
    alone = findings_alone(done)
    if alone is None:
        return None
    judged = _Judged(alone)
    judged.ending(done, basis.baseline)
    judged.silence(done, basis.baseline)
    judged.losses(done, basis.baseline)
    judged.memory(done, basis)
    judged.speed(done, basis)
    judged.milestones(done, basis.baseline)
    return judged.validation()


class _Judged:
    """Findings on the way: each method adds what one question has shown."""

    def __init__(self, alone: Validation) -> None:
        self._alone = alone
        self._broke: list[str] = []
        self._remarks: list[str] = []
        self._speed_ratio: float | None = None
        self._overall_ratio: float | None = None
        self._loss_ratio: float | None = None

    def validation(self) -> Validation:
        return replace(
            self._alone,
            speed_ratio=self._speed_ratio,
            overall_ratio=self._overall_ratio,
            loss_ratio=self._loss_ratio,
            broke=tuple(self._broke),
            remarks=tuple(self._remarks),
        )

    def ending(self, done: Execution, baseline: Execution) -> None:
        """Judge how it ended: nothing counts that today's config does as well, and no sooner."""
        if baseline.ending not in _WELL:
            self._remarks.append(f"today's config itself {_ended(baseline)}: nothing after that is compared")
        if done.ending is Ending.COMPLETED and not _came_as_far(done, baseline):
            went = f"after {_amount(done)}, and today's config made {_amount(baseline)}"
            self._broke.append(f"it ended by itself {went}")
        if done.ending in _WELL:
            return
        said = _ended(done)
        if done.ending is baseline.ending and done.detail == baseline.detail and _came_as_far(done, baseline):
            self._remarks.append(f"{said}, as today's config does")
        else:
            self._broke.append(said)

    def silence(self, done: Execution, baseline: Execution) -> None:
        """Judge whether it hung in what today's config comes through."""
        usual_s = max(baseline.milestones.longest_silence_s, baseline.milestones.silent_s)
        silent_s = done.milestones.silent_s
        # times the longest between two steps of today's config
        if done.ending is Ending.STOPPED and silent_s > max(25.0, 3.0 * usual_s):
            self._broke.append(
                f"no step came in its last {format_duration(silent_s)}; "
                f"today's config made one within {format_duration(usual_s)}"
            )

    def losses(self, done: Execution, baseline: Execution) -> None:
        """Judge whether its loss fell as that of today's config, after as many updates, or as many samples."""
        if done.ending not in _WELL:
            return
        compared = [
            (level, other)
            for steps, baseline_steps in _matched_updates(done, baseline)
            if (level := done.losses.level(steps)) and (other := baseline.losses.level(baseline_steps))
        ]
        if not compared:
            if baseline.losses.are_many or done.losses.are_many:
                self._remarks.append("the losses could not be compared: too few, not up to the end, or not above 0")
            return
        level, other = min(compared, key=lambda pair: pair[0].ratio - pair[1].ratio)
        self._loss_ratio = level.ratio / other.ratio
        error = math.hypot(level.error, other.error)
        allowed = max(_LEAST_EXCESS, 0.5 * (1.0 - other.ratio), _LOSS_ERRORS * error)  # of the fall of today's loss
        if level.ratio - other.ratio > allowed:
            self._broke.append(
                f"its loss went to {level.ratio:.2f} of where it began, and that of today's config to {other.ratio:.2f}"
            )

    def memory(self, done: Execution, basis: ValidationBasis) -> None:
        """Judge whether memory creeps: faster than with today's config, and full within a day."""
        totals = [gpu.memory_bytes for gpu in basis.machine.gpus if gpu.memory_bytes is not None]
        alone = self._alone
        for what, place, growth, total_bytes in (
            ("memory", 0, alone.memory_growth_bytes_per_s, basis.machine.memory_bytes),
            ("GPU memory", 1, alone.gpu_memory_growth_bytes_per_s, min(totals, default=0)),
        ):
            if not growth:
                continue
            usual = growth_bytes_per_s(basis.baseline.memory[place]) or 0.0
            grows = f"its {what} grows by {_a_minute(growth)}, and with today's config by {_a_minute(usual)}"
            full_s = max(0.0, total_bytes - done.memory[place][-1][1]) / growth
            if full_s < _FULL_WITHIN_S and growth > 2.0 * usual:  # times that of today's config
                self._broke.append(f"{grows}: it would be full after {format_duration(full_s)}")
            else:
                self._remarks.append(grows)

    def speed(self, done: Execution, basis: ValidationBasis) -> None:
        """Judge whether the gain stays: of a short trial's at least half, as far as the noise lets it be told."""
        ours, others = done.measurement, basis.baseline.measurement
        if done.ending not in _WELL or ours is None or others is None:
            return
        if done.validity in DISTURBED or basis.baseline.validity in DISTURBED:
            self._remarks.append("its speed was disturbed by something else, and is not compared")
            return
        self._speed_ratio = ours.speed / others.speed
        self._overall_ratio = _overall_ratio(done, basis.baseline)
        least = math.log(1.0 + 0.5 * (max(1.0, basis.speedup) - 1.0))  # of the confirmed one
        # of the difference of two trials: 1 in 40 is further down by chance
        if math.log(self._speed_ratio) + 2.0 * math.sqrt(2) * basis.sd < least:
            self._broke.append(
                f"it was {self._speed_ratio:.2f}x as fast as today's config in a longer training, and "
                f"{basis.speedup:.2f}x in short ones"
            )

    def milestones(self, done: Execution, baseline: Execution) -> None:
        """Note what today's config came to in that time, and this point did not."""
        if done.ending is not Ending.STOPPED:
            return
        for kind, noun in _NOUNS.items():
            if baseline.milestones.reached[kind] and not done.milestones.reached[kind]:
                self._remarks.append(f"the {noun} that today's config came to was not reached")


def _matched_updates(done: Execution, baseline: Execution) -> list[tuple[float, float]]:
    ours, others = done.milestones.updates, baseline.milestones.updates
    matched = [(float(min(ours, others)), float(min(ours, others)))]
    batch, other_batch = _samples_per_update(done), _samples_per_update(baseline)
    if batch and other_batch:
        samples = min(ours * batch, others * other_batch)
        matched.append((samples / batch, samples / other_batch))
    return matched


def _ended(done: Execution) -> str:
    detail = f" ({done.detail})" if done.detail else ""
    return f"{done.ending.value} after {format_duration(done.milestones.trained_s)} of training{detail}"


def _came_as_far(done: Execution, baseline: Execution) -> bool:
    """Return whether a trial made about as many samples as that of today's config; steps where samples are unknown."""
    ours, others = done.milestones, baseline.milestones
    if ours.samples is not None and others.samples is not None:
        return ours.samples >= _AS_FAR * others.samples
    return ours.steps >= _AS_FAR * others.steps


def _amount(done: Execution) -> str:
    passed = done.milestones
    return f"{passed.steps:,} steps" if passed.samples is None else f"{passed.samples:,.0f} samples"


def _overall_ratio(done: Execution, baseline: Execution) -> float | None:
    ours, others = done.milestones, baseline.milestones
    if not ours.samples or not others.samples or not ours.trained_s or not others.trained_s:
        return None
    return (ours.samples / ours.trained_s) / (others.samples / others.trained_s)


def _samples_per_update(done: Execution) -> float | None:
    measured, passed = done.measurement, done.milestones
    if measured is None or not passed.updates:
        return None
    return measured.samples_per_s * measured.window_s / measured.steps * passed.steps / passed.updates


def _a_minute(bytes_per_s: float) -> str:
    return f"{60 * bytes_per_s / _MIB:.0f} MiB a minute"
