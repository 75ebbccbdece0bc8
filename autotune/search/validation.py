"""Validation: trains a confirmed point, and the baseline before it, for longer than a trial."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from autotune.clock import format_duration
from autotune.measure.window import growth_bytes_per_s
from autotune.records import (
    DISTURBED,
    PAUSE_FIELDS,
    PAUSE_NOUNS,
    Ending,
    Machine,
    Purpose,
    SearchResult,
    TrialRecord,
    Validation,
    Values,
)
from autotune.search.parts import SearchParts
from autotune.search.schedule import CAUTION, STOPPING_S, expected_start_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import CUT_SHORT, SearchStage, TrialMaker
from autotune.trial.execution import Execution, TrialSpec
from autotune.trial.outcome import CHECKPOINT, EPOCH_END, EVALUATION, LossComparison, compare_losses


class Validator(SearchStage):
    """Validator of confirmed points.

    Attributes:
        has_broken: Whether a point failed; the next then has to be validated to be the answer.
    """

    def __init__(self, parts: SearchParts, state: SearchState, trials: TrialMaker) -> None:
        super().__init__(parts, state, trials)
        self._longest_s = parts.options.validate_s
        self._baseline: Execution | None = None
        self.has_broken = False

    @property
    def needed_s(self) -> float:
        """Longest time of the next validation, including the baseline's before the first."""
        if self._longest_s is None:
            return 0.0
        trials = 1 if self._baseline else 2
        return trials * (self._longest_s + CAUTION * (expected_start_s(self._state.trials.own) + STOPPING_S))

    def breaks(self, result: SearchResult) -> bool:
        """Validate the best point of an answer, if requested; return whether it fails."""
        if self._longest_s is None or result.best is None or result.speedup is None:
            return False
        left_s, speedup = self._parts.budget.left_s(), result.speedup.ratio
        if left_s < self.needed_s:
            left = format_duration(max(0.0, left_s))
            return self._give_up(f"{left} is left, and it takes {format_duration(self.needed_s)}")
        self._events.change_phase("validating", f"training for up to {format_duration(self._longest_s)} each")
        if self._baseline is None:
            uncompared = self._train(self._parts.problem.space.baseline, uncompared_findings)
            if uncompared.validation is None:
                return self._give_up("the training of today's config was cut short")
            self._baseline = self._trials.latest
        baseline, sd, machine = self._baseline, self._state.model.sd, self._parts.problem.machine
        assert baseline is not None
        judge = partial(judge_validation, baseline=baseline, speedup=speedup, sd=sd, machine=machine)
        record = self._train(result.best.values, judge)
        if record.validation is None:
            return self._give_up(f"its training was cut short: {record.ending.value}")
        self.has_broken |= bool(record.validation.broke)
        return bool(record.validation.broke)

    def _train(self, values: Values, judge: Callable[[Execution], Validation | None]) -> TrialRecord:
        trial = TrialSpec(values=values, purpose=Purpose.VALIDATE, validate_s=self._longest_s)
        return self._trials.make_once(trial, judge=judge)

    def _give_up(self, why: str) -> bool:
        self._events.change_phase("ending", f"the answer is not validated: {why}")
        return False


_NORMAL = (Ending.COMPLETED, Ending.STOPPED)
_FULL_WITHIN_S = 24 * 3600.0


def uncompared_findings(done: Execution) -> Validation | None:
    """Return the results of a validation trial without comparison; None if it was cut short."""
    if done.ending in CUT_SHORT:
        return None
    (host, gpu), reached = done.memory, done.milestones.reached
    return Validation(
        trained_s=done.milestones.trained_s,
        epoch_ends=reached[EPOCH_END],
        evaluations=reached[EVALUATION],
        checkpoints=reached[CHECKPOINT],
        memory_growth_bytes_per_s=growth_bytes_per_s(host),
        gpu_memory_growth_bytes_per_s=growth_bytes_per_s(gpu),
    )


class Broke(str):
    """Finding that rules a point out; other findings are remarks."""


def judge_validation(
    done: Execution, baseline: Execution, *, speedup: float, sd: float, machine: Machine
) -> Validation | None:
    """Judge the validation trial of a confirmed point; None if it was cut short.

    Args:
        speedup: Confirmed speed relative to the baseline.
        sd: SD of ln speed between trials of one point.
    """
    uncompared = uncompared_findings(done)
    if uncompared is None:
        return None
    fall, (speed_ratio, overall_ratio) = _loss_ratios(done, baseline), _speed_ratios(done, baseline)
    compared = _compared_losses(done, baseline)
    findings = [
        *_of_ending(done, baseline),
        *_of_silence(done, baseline),
        *_of_losses(done, baseline, fall, compared),
        *_of_memory(done, baseline, uncompared, machine),
        *_of_speed(done, baseline, speed_ratio, speedup, sd),
        *_of_milestones(done, baseline),
    ]
    return replace(
        uncompared,
        speed_ratio=speed_ratio,
        overall_ratio=overall_ratio,
        loss_ratio=fall[0] / fall[1] if fall else None,
        losses=(compared.own, compared.baseline) if compared else None,
        broke=tuple(str(one) for one in findings if isinstance(one, Broke)),
        remarks=tuple(one for one in findings if not isinstance(one, Broke)),
    )


def _of_ending(done: Execution, baseline: Execution) -> Iterator[str]:
    """Judge its ending; one shared with the baseline, and no earlier, does not count."""
    if baseline.ending not in _NORMAL:
        yield f"today's config itself {_ended(baseline)}: nothing after that is compared"
    trained_as_much = _trained_as_much(done, baseline)
    if done.ending is Ending.COMPLETED and not trained_as_much:
        yield Broke(f"it finished after {_amount(done)}, and today's config reached {_amount(baseline)}")
    if done.ending not in _NORMAL:
        is_same = done.ending is baseline.ending and done.detail == baseline.detail and trained_as_much
        yield f"{_ended(done)}, as today's config does" if is_same else Broke(_ended(done))


def _of_silence(done: Execution, baseline: Execution) -> Iterator[str]:
    usual_s = max(baseline.milestones.longest_silence_s, baseline.milestones.silent_s)
    silent_s = done.milestones.silent_s
    # times the longest between two steps of today's config
    if done.ending is Ending.STOPPED and silent_s > max(25.0, 3.0 * usual_s):
        silent, usual = map(format_duration, (silent_s, usual_s))
        yield Broke(f"it made no step in its last {silent}; today's config made one within {usual}")


def _loss_ratios(done: Execution, baseline: Execution) -> tuple[float, float, float] | None:
    """Return the relative losses of both at the end, and the error of their difference; None if too few were seen.

    The better result after as many updates and after as many samples counts.
    """
    compared = [
        (level, other)
        for steps, baseline_steps in _matched_updates(done, baseline)
        if (level := done.losses.relative_level(steps)) and (other := baseline.losses.relative_level(baseline_steps))
    ]
    if done.ending not in _NORMAL or not compared:
        return None
    level, other = min(compared, key=lambda pair: pair[0].ratio - pair[1].ratio)
    return level.ratio, other.ratio, math.hypot(level.error, other.error)


def _compared_losses(done: Execution, baseline: Execution) -> LossComparison | None:
    """Compare the losses themselves; None if too few were seen, or the batch size differs."""
    batch, usual = _samples_per_update(done), _samples_per_update(baseline)
    if done.ending not in _NORMAL or not batch or not usual or abs(math.log(batch / usual)) > 0.01:
        return None
    return compare_losses([baseline.losses], done.losses)


def _of_losses(
    done: Execution, baseline: Execution, fall: tuple[float, float, float] | None, compared: LossComparison | None
) -> Iterator[str]:
    """Judge whether its loss fell like the baseline's."""
    if compared is not None and compared.is_far_above:
        yield Broke(str(compared))
        return
    if fall is None:
        if done.ending in _NORMAL and (baseline.losses.are_many or done.losses.are_many):
            yield "the losses could not be compared: too few, not up to the end, or not above 0"
        return
    ratio, other, error = fall
    # a tenth of the initial loss, half the fall of the baseline's, or three standard errors
    if ratio - other > max(0.1, 0.5 * (1.0 - other), 3.0 * error):
        yield Broke(f"its loss went to {ratio:.2f} of its initial value, and that of today's config to {other:.2f}")


def _of_memory(done: Execution, baseline: Execution, uncompared: Validation, machine: Machine) -> Iterator[str]:
    """Judge whether memory grows faster than the baseline's, and would be full within a day."""
    gpu_bytes = min((gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None), default=0)
    on_host = ("memory", 0, uncompared.memory_growth_bytes_per_s, machine.memory_bytes)
    on_gpu = ("GPU memory", 1, uncompared.gpu_memory_growth_bytes_per_s, gpu_bytes)
    for what, place, growth, total_bytes in (on_host, on_gpu):
        if not growth:
            continue
        usual = growth_bytes_per_s(baseline.memory[place]) or 0.0
        grows = f"its {what} grows by {_a_minute(growth)}, and with today's config by {_a_minute(usual)}"
        full_s = max(0.0, total_bytes - done.memory[place][-1][1]) / growth
        is_faster = full_s < _FULL_WITHIN_S and growth > 2.0 * usual
        yield Broke(f"{grows}: it would be full after {format_duration(full_s)}") if is_faster else grows


def _speed_ratios(done: Execution, baseline: Execution) -> tuple[float | None, float | None]:
    """Return the relative speed in steady state and with all pauses; None if not comparable."""
    ours, others = done.measurement, baseline.measurement
    is_disturbed = done.validity in DISTURBED or baseline.validity in DISTURBED
    if done.ending not in _NORMAL or ours is None or others is None or is_disturbed:
        return None, None
    both = (done.milestones, baseline.milestones)
    paces = [one.samples / one.trained_s for one in both if one.samples and one.trained_s]
    return ours.speed / others.speed, paces[0] / paces[1] if len(paces) == 2 else None


def _of_speed(done: Execution, baseline: Execution, ratio: float | None, speedup: float, sd: float) -> Iterator[str]:
    """Judge whether at least half of the gain remains, allowing for noise."""
    if ratio is None:
        if done.ending in _NORMAL and done.measurement and baseline.measurement:
            yield "its speed was affected by other load, and is not compared"
        return
    least = math.log(1.0 + 0.5 * (max(1.0, speedup) - 1.0))
    # two standard deviations of the difference of two trials: by chance, 1 in 40 is lower
    if math.log(ratio) + 2.0 * math.sqrt(2) * sd < least:
        yield Broke(f"it was {ratio:.2f}x as fast as today's config in a longer training, {speedup:.2f}x in short ones")


def _of_milestones(done: Execution, baseline: Execution) -> Iterator[str]:
    for kind, field in PAUSE_FIELDS.items() if done.ending is Ending.STOPPED else ():
        if baseline.milestones.reached[kind] and not done.milestones.reached[kind]:
            yield f"the {PAUSE_NOUNS[field][0]} that today's config reached was not reached"


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


def _trained_as_much(done: Execution, baseline: Execution) -> bool:
    """Return whether a trial trained on about as many samples (or steps) as the baseline."""
    ours, others = done.milestones, baseline.milestones
    if ours.samples is not None and others.samples is not None:
        return ours.samples >= 0.9 * others.samples
    return ours.steps >= 0.9 * others.steps


def _amount(done: Execution) -> str:
    passed = done.milestones
    return f"{passed.steps:,} steps" if passed.samples is None else f"{passed.samples:,.0f} samples"


def _samples_per_update(done: Execution) -> float | None:
    measured, passed = done.measurement, done.milestones
    if measured is None or not passed.updates:
        return None
    return measured.samples_per_s * measured.window_s / measured.steps * passed.steps / passed.updates


def _a_minute(bytes_per_s: float) -> str:
    return f"{60 * bytes_per_s / 2**20:.0f} MiB a minute"
