"""Profile of a trainer's own step, in a trial made for it: the trainer's real model, its real batches."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from autotune.clock import Clock
from autotune.diagnose.findings import percent
from autotune.diagnose.profile_trials import MadeTrial, TrialRequest, open_trials
from autotune.errors import TrialError
from autotune.measure.statistics import Series
from autotune.measure.window import Window, main_stream, steady_window
from autotune.records import TraineeEvent
from autotune.search.problem import Problem
from autotune.trial.search_child import run_short

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that asks the code inside the trainer for a profile."""

NO_PROFILE = "no profile of the step: "
"""Begin of its notes on why there is none."""

BEGINS = "the parts of the step will be timed"
"""Note of a process that makes one."""


@dataclass(frozen=True, kw_only=True)
class TrainerStep:
    """Profile of a trainer's step."""

    profile: StepProfile
    remarks: tuple[str, ...]


def profile_trainer_step(problem: Problem, clock: Clock, *, ends_s: float = math.inf) -> TrainerStep:
    """Profile the step of a trainer with today's values, in a trial of its own.

    Args:
        problem: The config and the command; runnable.
        ends_s: Time at which the trial is ended at the latest, on the clock's monotonic time.

    Raises:
        TrialError: The trainer made too few steps, or its step could not be timed.
        AutotuneError: The trial cannot be made.
    """
    with open_trials(problem, clock, ends_s=ends_s) as trials:
        trial = trials.make(
            TrialRequest(
                label="step",
                values=problem.space.baseline,
                environment={VARIABLE: "1"},
                is_over=_is_over,
                window_of=_first_stretch,
                longest_s=300.0,  # from the first step on, with the profile
            )
        )
        remarks = tuple(trials.remarks)
    times = _times(trial.folder.path)
    if times is None and trial.trouble is not None:
        raise trial.trouble
    if times is not None and times.error is not None:
        raise TrialError(
            f"the step was not measured: {times.error}",
            where=str(trial.folder.path),
            remedy="Look at the trial's output in that folder.",
        )
    profile = step_profile(times or _without(trial), _training(trial, times))
    trial.folder.delete()
    return TrainerStep(profile=profile, remarks=remarks)


def _times(folder: Path) -> StepTimes | None:
    try:
        return read_step_times(folder / FILE)
    except (OSError, ValueError) as error:
        return StepTimes(error=Line(f"its times cannot be read: {error}"))


def _is_over(folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether the profile is made and some steps of the training came after it, or none will be made."""
    times = _times(folder)
    if times is not None:
        return times.error is not None or not times.held or now_s > times.held[-1][1] + 2.0
    if any(event.kind == "note" and event.text == BEGINS for event in events):
        return False
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > 10 and now_s > steps[0].t_s + 8.0  # it is clear by then


def _first_stretch(folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    times = _times(folder)
    begin_s = times.held[0][0] if times is not None and times.held else math.inf
    return steady_window([event for event in events if event.t_s < begin_s])


def _windows(trial: MadeTrial, times: StepTimes) -> list[Window]:
    """Return the steady windows of the training: before the first block of the profile, and after each."""
    skipped = 1 if times.draws else 8  # after a block, where the loader had time to work ahead
    borders_s = [0.0, *(border_s for block in times.held for border_s in block), math.inf]
    found, stream = [], main_stream(trial.events)
    for begin_s, end_s in zip(borders_s[::2], borders_s[1::2], strict=True):
        # A step ends after its block: the first to end after one was begun before it, and is left out with a few more.
        within = [event for event in trial.events if begin_s < event.t_s < end_s]
        steps = [event for event in within if event.kind == "step" and event.stream == stream]
        if len(steps) > skipped:
            first_s = steps[skipped].t_s if begin_s else begin_s
            window = steady_window([event for event in within if event.t_s >= first_s])
            found += [window] if window else []
    return found


def _training(trial: MadeTrial, times: StepTimes | None) -> Training:
    gpu_utilization = trial.measurement.gpu_utilization if trial.measurement else None
    if times is not None and times.marked_ms:  # by the same borders as the steps with marks
        plain_ms = times.plain_ms
        return Training(steps_ms=plain_ms, waits_ms=None, steps=len(plain_ms), gpu_utilization=gpu_utilization)
    windows = _windows(trial, times) if times is not None else [trial.window] if trial.window else []
    if not windows:
        raise TrialError(
            "too few steps were seen to say how long one takes",
            where=str(trial.folder.path),
            remedy="The trial needs about a hundred steps: see that the config does not end the training before.",
        )
    on_cpu = times is None or times.device == "CPU"
    waits = [_in_ms(np.nan_to_num(one.waits_s), one, on_cpu) for one in windows if one.waits_s is not None]
    return Training(
        steps_ms=[value for window in windows for value in _in_ms(window.durations_s, window, on_cpu)],
        waits_ms=[value for values in waits for value in values] if len(waits) == len(windows) else None,
        steps=sum(window.steps for window in windows),
        gpu_utilization=gpu_utilization,
    )


def _in_ms(values_s: Series, window: Window, on_cpu: bool) -> list[float]:
    """Return the values of all steps; on an accelerator, where steps end when enqueued, means over a second each."""
    parts = window.steps if on_cpu else max(1, min(int(window.time_s), window.steps))
    return [1000.0 * float(part.mean()) for part in np.array_split(values_s, parts)]


def _without(trial: MadeTrial) -> StepTimes:
    notes = [event.text for event in trial.events if event.kind == "note" and event.text]
    unknown = (
        "its steps are made neither by Keras's fit or train_on_batch, nor by autotune.tf.TrainStep, nor by an "
        "optimizer of PyTorch"
    )
    told = next((note.removeprefix(NO_PROFILE) for note in notes if note.startswith(NO_PROFILE)), unknown)
    parts: tuple[_Function, ...] = ("copy", "forward", "loss", "gradients", "update")
    return StepTimes(of=Line("the trainer"), why_not=dict.fromkeys(parts, Line(told)))


_ENDS_WITH: Mapping[_Function, str] = {
    "forward": "forward",
    "loss": "loss",
    "gradients": "backward",
    "update": "optimizer",
    "metrics": "metrics",
}
"""Functions in the order in which each does one part more, with the phase that each ends with."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a training step.

    Attributes:
        mean_ms: Mean over the rounds, with the longest and shortest tenth drawn in; None where it was not measured.
            Means add up, medians of skewed times do not.
        median_ms: Median over the rounds; None where it was not measured. Below 0 it is lost in the noise.
        quartiles_ms: First and third quartile over the rounds; None likewise.
        tail_ms: 95th and 99th percentile over the rounds; None likewise.
        why_not: Reason that it was not measured; None where it was.
    """

    name: str
    mean_ms: float | None
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
    tail_ms: tuple[float, float] | None = None
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps of the training itself, outside the profile.

    Attributes:
        steps_ms: Time of each step, or its mean over each of several stretches.
        waits_ms: Time that each waited for data, likewise; None where that is not known.
        gpu_utilization: Share of the time in which a GPU was busy; None if not known.
    """

    steps_ms: Sequence[float]
    waits_ms: Sequence[float] | None
    steps: int
    gpu_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Phases of a training step, and the whole step timed by itself.

    Attributes:
        batch_size: Samples in a batch; None if that is not known.
        rounds: How often each part was timed.
        steps: Steps of the training that the whole step was taken from; None where it was timed like its parts.
        step: The whole step, timed by itself.
        adds_up: Sum of the means without the rest, as a part of the step's; None where the phases are not known.
        gpu_utilization: Share of the training's time in which a GPU was busy; None if not known.
        marks_cost: How much longer steps with marks took, as a part of the step; None where no marks were made.
        places: What is on which device; empty where there is no GPU, or where it is not known.
        slowest: Operations that took longest where a step was made one by one; empty where that is not known.
    """

    of: str
    compiled: str
    device: str
    batch_size: int | None
    rounds: int
    steps: int | None
    phases: tuple[Phase, ...]
    step: Phase
    adds_up: float | None
    gpu_utilization: float | None = None
    marks_cost: float | None = None
    places: tuple[Place, ...] = ()
    slowest: tuple[Operation, ...] = ()

    @property
    def verdict(self) -> str:
        """What takes most of the step, and what that is about, as a sentence; steps of uneven length are told, too."""
        known = [(phase.mean_ms, phase.name) for phase in self.phases if phase.mean_ms is not None]
        step_ms, (most_ms, most) = self.step.mean_ms, max(known, default=(0.0, ""))
        if not step_ms or self.adds_up is None:
            return "What takes most of the step is not known: its parts were not measured."
        about = {
            "data": "waiting for data is the limit, and `autotune profile pipeline` says what of it",
            "copy to device": "the copy is the limit: batches that are on the device ahead hide it",
            "the rest": "Python and callbacks between the parts are the limit, not arithmetic",
        }
        arithmetic = "the arithmetic of the step is the limit, not its data"
        said = (
            f"{most[0].upper()}{most[1:]} takes {percent(most_ms / step_ms)} of the step: {about.get(most, arithmetic)}"
        )
        if self.step.tail_ms and self.step.median_ms and self.step.tail_ms[1] > 2.0 * self.step.median_ms:
            times = f"{self.step.tail_ms[1] / self.step.median_ms:.1f}"
            said = f"{said}; one step in a hundred takes {times} times the usual"
        return f"{said}."


def step_profile(times: StepTimes, training: Training | None = None) -> StepProfile:
    """Return the profile that the times of the functions make.

    Args:
        times: The times; without `training`, those of ``data`` and ``step`` are among them.
        training: Steps of the training itself, in place of these two.

    Raises:
        ValueError: Neither has the time of a step.
    """
    functions, marked = times.times_ms, times.marked_ms
    step = _phase("step", functions.get("step") if training is None else training.steps_ms)
    if step.mean_ms is None or step.median_ms is None:
        raise ValueError("the time of a step is missing")
    marks_cost = None
    if marked:
        unseen = {name: times.why_not.get(name, "nothing of it was seen") for name in PHASES}
        phases = [_phase(_name(name), marked.get(name), unseen[name]) for name in PHASES if name != "rest"]
        with_marks_ms = _mean([sum(parts) for parts in zip(*marked.values(), strict=True)])
        marks_cost = with_marks_ms / step.mean_ms - 1.0 if step.mean_ms else None
    else:
        data, unseen_data = functions.get("data"), "the trainer does not show for how long it waits for data"
        waits = _phase("data", data if training is None else training.waits_ms, unseen_data)
        phases = [waits, _phase(_name("copy"), functions.get("copy"), times.why_not.get("copy")), *_computed(times)]
    total_ms = sum(phase.mean_ms for phase in phases if phase.mean_ms is not None)
    medians_ms = sum(phase.median_ms for phase in phases if phase.median_ms is not None)
    rest = Phase(
        name="the rest", mean_ms=step.mean_ms - total_ms, median_ms=step.median_ms - medians_ms, quartiles_ms=None
    )
    is_known = bool(marked) or any(name in functions for name in (*_ENDS_WITH, "whole"))
    return StepProfile(
        of=times.of,
        compiled=times.compiled,
        device=times.device,
        batch_size=times.batch_size,
        rounds=max((len(values) for values in (*functions.values(), *marked.values())), default=0),
        steps=None if training is None else training.steps,
        phases=(*phases, rest),
        step=step,
        adds_up=total_ms / step.mean_ms if is_known and step.mean_ms else None,
        gpu_utilization=training.gpu_utilization if training else None,
        marks_cost=marks_cost,
        places=times.places,
        slowest=times.slowest,
    )


def _name(phase: str) -> str:
    return "copy to device" if phase == "copy" else phase


def _computed(times: StepTimes) -> list[Phase]:
    """Return the phases from forward to optimizer: each what its function takes beyond the one before that is there."""
    whole = times.times_ms.get("whole")
    phases = [_phase("forward to optimizer", whole)] if whole else []
    unseen: list[str] = []  # phases without a function of their own, which are part of the next
    before_ms: Sequence[float] | None = None
    for function, name in _ENDS_WITH.items():
        values_ms = times.times_ms.get(function)
        if values_ms is not None:
            earlier_ms = before_ms or [0.0] * len(values_ms)
            differences_ms = [late - early for late, early in zip(values_ms, earlier_ms, strict=True)]
            phase = _phase(" and ".join((*unseen, name)), differences_ms)
            phases.append(replace(phase, mean_ms=_mean(values_ms) - _mean(earlier_ms)))
            before_ms, unseen = values_ms, []
        elif function != "metrics":
            phases.append(_phase(name, None, times.why_not.get(function)))
            unseen.append(name)
    return phases


def _phase(name: str, values_ms: Sequence[float] | None, why_not: str | None = None) -> Phase:
    if values_ms is None:
        why_not = why_not or "it could not be told apart"
        return Phase(name=name, mean_ms=None, median_ms=None, quartiles_ms=None, why_not=why_not)
    low_ms, median_ms, high_ms, *tail_ms = np.quantile(values_ms, (0.25, 0.5, 0.75, 0.95, 0.99)).tolist()
    quartiles_ms, tail = (low_ms, high_ms), (tail_ms[0], tail_ms[1])
    return Phase(name=name, mean_ms=_mean(values_ms), median_ms=median_ms, quartiles_ms=quartiles_ms, tail_ms=tail)


def _mean(values_ms: Sequence[float]) -> float:
    # of the times at either end: something else on the machine makes a few of them several times as long
    return float(np.clip(values_ms, *np.quantile(values_ms, (0.1, 0.9))).mean())


# File of the profiler inside the trainer: whatever is in it may be a trainer's.


_Function = Literal["data", "copy", "forward", "loss", "gradients", "update", "metrics", "whole", "step"]
_Marked = Literal["data", "copy", "forward", "loss", "backward", "optimizer", "rest"]
_TimesMs = Annotated[tuple[Annotated[float, Meta(ge=0.0, le=1e7)], ...], Meta(min_length=2, max_length=1000)]
_Moment = Annotated[float, Meta(ge=0.0, le=1e9)]


class Line(str):
    """Text of one line without control characters."""

    __slots__ = ()


_EMPTY = Line()
FILE = "step_phases.json"
VERSION: Literal[1] = 1
PHASES: tuple[_Marked, ...] = ("data", "copy", "forward", "loss", "backward", "optimizer", "rest")
"""Phases of a step with marks."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Tensors or operations of one kind on one device."""

    what: Line
    device: Line
    count: Annotated[int, Meta(ge=0, le=10**9)]
    names: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Operation of a step that was made one by one.

    Attributes:
        place: File, line and function of the trainer's own that have led to it.
        count: How often it is made in a step.
        ms: Time of all of these.
    """

    what: Line
    place: Line
    count: Annotated[int, Meta(ge=0, le=10**9)]
    ms: Annotated[float, Meta(ge=0.0, le=1e7)]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of functions that do more and more of a training step.

    Attributes:
        held: Begin and end of each time for which the trainer was held for it, in their order.
        draws: Whether its loader was at work meanwhile, as in training.
        error: Reason that there are no times; None if there are.
        batch_size: Samples in a batch; None if that is not known.
        times_ms: Function → its time in each round; of each as many, apart from ``copy``.
        marked_ms: Phase → its time in each step with marks, where they make the profile.
        plain_ms: Time of each step without marks, likewise.
        why_not: Function or phase that there is not → the reason.
        places: What is on which device, where there is a GPU.
        slowest: Operations that took longest where a step was made one by one; empty where none was.
    """

    v: Literal[1] = VERSION
    held: Annotated[tuple[tuple[_Moment, _Moment], ...], Meta(max_length=1000)] = ()
    draws: bool = False
    error: Line | None = None
    of: Line = _EMPTY
    compiled: Line = _EMPTY
    device: Line = _EMPTY
    batch_size: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    times_ms: Mapping[_Function, _TimesMs] = field(default_factory=dict)
    marked_ms: Mapping[_Marked, _TimesMs] = field(default_factory=dict)
    plain_ms: _TimesMs = ()
    why_not: Mapping[_Function | _Marked, Line] = field(default_factory=dict)
    places: Annotated[tuple[Place, ...], Meta(max_length=50)] = ()
    slowest: Annotated[tuple[Operation, ...], Meta(max_length=50)] = ()


def read_step_times(path: Path) -> StepTimes | None:
    """Return the times in a file; None if there is no file.

    Raises:
        ValueError: It holds something else.
        OSError: It cannot be read.
    """
    most_bytes = 1 << 20
    try:
        with open(path, "rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    return parse_step_times(data)


def parse_step_times(text: str | bytes) -> StepTimes:
    """Return the times in a text.

    Raises:
        ValueError: It holds something else.
    """
    found = msgspec.json.decode(text, type=StepTimes, dec_hook=_line)
    if found.error is not None:
        return found
    rounds = [len(values) for values in found.marked_ms.values()]
    rounds += [len(values) for name, values in found.times_ms.items() if name != "copy"]
    if not found.of or len(set(rounds)) > 1 or bool(found.marked_ms) is not bool(found.plain_ms):
        raise ValueError("no times of a step, or functions were timed in different numbers of rounds")
    moments = [moment_s for block in found.held for moment_s in block]
    if any(after_s < before_s for before_s, after_s in pairwise(moments)):
        raise ValueError("times of the trial out of order")
    return found


def _line(_kind: type, value: Any) -> Line:
    if not isinstance(value, str):
        raise ValueError("no text in its place")
    return Line("".join(letter for letter in " ".join(value.split()) if letter.isprintable())[:300])


# Profile of the step of the shipped text-to-speech model, on random batches, in a process of its own.


BATCH_SIZE = 8
ROUNDS = 20
_MARKER = "autotune-step-profile "


def profile_shipped_step(python: str = sys.executable) -> StepProfile:
    """Time the step of the shipped text-to-speech model on random batches, in a process of its own.

    Args:
        python: Interpreter that has TensorFlow.

    Raises:
        TrialError: That process failed, or took too long.
    """
    argv = [python, "-m", "autotune.workloads.tts.step_profile", str(BATCH_SIZE), str(ROUNDS)]
    ended = run_short(argv, 300.0, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    line = next((line for line in reversed(ended.text.splitlines()) if line.startswith(_MARKER)), None)
    if ended.status != 0 or line is None:
        last = ended.text.splitlines()[-1] if ended.text else "it printed nothing"
        raise TrialError(
            f"the step was not measured: {last}",
            where=" ".join(argv),
            remedy="It needs an interpreter with TensorFlow: pip install '.[tensorflow]' in a clone.",
        )
    return step_profile(parse_step_times(line.removeprefix(_MARKER)))
