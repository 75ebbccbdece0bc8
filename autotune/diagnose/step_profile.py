"""Profile of a trainer's own step, in a trial made for it: the trainer's real model, its real batches."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.clock import Clock
from autotune.diagnose.profile_trials import MadeTrial, TrialRequest, open_trials
from autotune.errors import TrialError
from autotune.measure.statistics import Series, winsorize
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

_LONGEST_WITHOUT_S, _STEPS_WITHOUT = 8.0, 10  # of training, after which it is clear that there will be no profile
_UNKNOWN = (
    "its steps are made neither by Keras's fit or train_on_batch, nor by autotune.tf.TrainStep, nor by an optimizer of "
    "PyTorch"
)


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
    """Return the times that the profiler in the trainer has written; None if there are none yet."""
    try:
        return read_step_times(folder / FILE)
    except (OSError, ValueError) as error:
        return StepTimes(error=f"its times cannot be read: {error}")


def _is_over(folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether the profile is made and some steps of the training came after it, or none will be made."""
    times = _times(folder)
    if times is not None:
        return times.error is not None or not times.held or now_s > times.held[-1][1] + 2.0
    if any(event.kind == "note" and event.text == BEGINS for event in events):
        return False
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > _STEPS_WITHOUT and now_s > steps[0].t_s + _LONGEST_WITHOUT_S


def _first_stretch(folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    times = _times(folder)
    if times is None or not times.held:
        return steady_window(events)
    return steady_window([event for event in events if event.t_s < times.held[0][0]])


def _windows(trial: MadeTrial, times: StepTimes | None) -> list[Window]:
    """Return the steady windows of the training: before the first block of the profile, and after each."""
    if times is None:
        return [trial.window] if trial.window else []
    skipped = 1 if times.draws else 8  # after a block, where the loader had time to work ahead
    begins_s = [0.0, *(end_s for _, end_s in times.held)]
    ends_s = [*(begin_s for begin_s, _ in times.held), math.inf]
    found, stream = [], main_stream(trial.events)
    for number, (begin_s, end_s) in enumerate(zip(begins_s, ends_s, strict=True)):
        # A step ends after its block: the first to end after one was begun before it, and is left out with a few more.
        within = [event for event in trial.events if begin_s < event.t_s < end_s]
        steps = [event for event in within if event.kind == "step" and event.stream == stream]
        first_s = steps[skipped].t_s if number and len(steps) > skipped else begin_s
        window = steady_window([event for event in within if event.t_s >= first_s]) if len(steps) > skipped else None
        found += [window] if window else []
    return found


def _training(trial: MadeTrial, times: StepTimes | None) -> Training:
    """Return the steps of the training outside the profile.

    Raises:
        TrialError: There are too few.
    """
    gpu_utilization = trial.measurement.gpu_utilization if trial.measurement else None
    if times is not None and times.marked_ms:  # by the same borders as the steps with marks
        return Training(
            steps_ms=times.plain_ms, waits_ms=None, steps=len(times.plain_ms), gpu_utilization=gpu_utilization
        )
    windows = _windows(trial, times)
    if not windows:
        raise TrialError(
            "too few steps were seen to say how long one takes",
            where=str(trial.folder.path),
            remedy="The trial needs about a hundred steps: see that the config does not end the training before.",
        )
    on_cpu = times is None or times.device == "CPU"
    waits = [_stretches(np.nan_to_num(one.waits_s), one, on_cpu) for one in windows if one.waits_s is not None]
    return Training(
        steps_ms=[1000 * value for window in windows for value in _stretches(window.durations_s, window, on_cpu)],
        waits_ms=[1000 * value for values in waits for value in values] if len(waits) == len(windows) else None,
        steps=sum(window.steps for window in windows),
        gpu_utilization=gpu_utilization,
    )


def _stretches(values: Series, window: Window, on_cpu: bool) -> list[float]:
    """Return the values of all steps; on an accelerator, the means over stretches of about a second."""
    if on_cpu:
        return [float(value) for value in values]
    # on an accelerator, over which steps are averaged: single ones end when they are enqueued
    parts = max(1, min(int(window.time_s / 1.0), window.steps))
    return [float(part.mean()) for part in np.array_split(values, parts)]


def _without(trial: MadeTrial) -> StepTimes:
    """Return times of a trainer whose step could not be taken apart: the reason for each."""
    notes = [event.text for event in trial.events if event.kind == "note" and event.text]
    told = next((note.removeprefix(NO_PROFILE) for note in notes if note.startswith(NO_PROFILE)), _UNKNOWN)
    return StepTimes(
        of="the trainer",
        compiled="",
        device="",
        why_not=dict.fromkeys(("copy", "forward", "loss", "gradients", "update"), told),
    )


_ORDER = ("forward", "loss", "gradients", "update", "metrics")
"""Functions in the order in which each does one part more."""

_PHASES = {
    "forward": "forward",
    "loss": "loss",
    "gradients": "backward",
    "update": "optimizer",
    "metrics": "metrics",
}
"""Function → the phase that it ends with."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a training step.

    Attributes:
        mean_ms: Mean over the rounds, with the longest and shortest tenth drawn in; None where it was not measured.
            Means add up, medians of skewed times do not.
        median_ms: Median over the rounds; None where it was not measured. Below 0 it is lost in the noise.
        quartiles_ms: First and third quartile over the rounds; None likewise.
        why_not: Reason that it was not measured; None where it was.
    """

    name: str
    mean_ms: float | None
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
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


def step_profile(times: StepTimes, training: Training | None = None) -> StepProfile:
    """Return the profile that the times of the functions make.

    Args:
        times: The times; without `training`, those of ``data`` and ``step`` are among them. With marks, those of
            ``data`` are.
        training: Steps of the training itself, in place of these two.

    Raises:
        ValueError: Neither has the time of a step.
    """
    if training is None:
        data, step = _of(times, "data", "data"), _of(times, "step", "step")
    else:
        step = _spread("step", training.steps_ms)
        data = _missing("data", "the trainer does not show for how long it waits for data")
        if training.waits_ms is not None:
            data = _spread("data", training.waits_ms)
    if step.mean_ms is None or step.median_ms is None:
        raise ValueError("the time of a step is missing")
    phases = (data, _of(times, "copy", "copy to device"), *_computed(times))
    marks_cost = None
    if times.marked_ms:
        phases = tuple(_marked(times, name) for name in PHASES if name != "rest")
        with_marks_ms = _mean([sum(parts) for parts in zip(*times.marked_ms.values(), strict=True)])
        marks_cost = with_marks_ms / step.mean_ms - 1.0 if step.mean_ms else None
    total_ms = sum(phase.mean_ms for phase in phases if phase.mean_ms is not None)
    medians_ms = sum(phase.median_ms for phase in phases if phase.median_ms is not None)
    is_known = bool(times.marked_ms) or any(name in times.times_ms for name in (*_ORDER, "whole"))
    rest = Phase(
        name="the rest",
        mean_ms=step.mean_ms - total_ms,
        median_ms=step.median_ms - medians_ms,
        quartiles_ms=None,
    )
    return StepProfile(
        of=times.of,
        compiled=times.compiled,
        device=times.device,
        batch_size=times.batch_size,
        rounds=max((len(values) for values in (*times.times_ms.values(), *times.marked_ms.values())), default=0),
        steps=None if training is None else training.steps,
        phases=(*phases, rest),
        step=step,
        adds_up=total_ms / step.mean_ms if is_known and step.mean_ms else None,
        gpu_utilization=training.gpu_utilization if training else None,
        marks_cost=marks_cost,
        places=times.places,
    )


def _marked(times: StepTimes, phase: str) -> Phase:
    name = "copy to device" if phase == "copy" else phase
    if phase in times.marked_ms:
        return _spread(name, times.marked_ms[phase])
    return _missing(name, times.why_not.get(phase, "nothing of it was seen"))


def _computed(times: StepTimes) -> list[Phase]:
    """Return the phases from forward to optimizer: each what its function takes beyond the one before that is there."""
    phases, before = [], None
    if "whole" in times.times_ms:
        phases.append(_spread("forward to optimizer", times.times_ms["whole"]))
    for name in _ORDER:
        if name not in times.times_ms:
            if name != "metrics":
                phases.append(_missing(_PHASES[name], times.why_not.get(name, "it could not be told apart")))
            continue
        values = times.times_ms[name]
        phase = _spread(_name(name, before, times.times_ms), values)
        if before is not None:
            earlier = times.times_ms[before]
            phase = _spread(phase.name, [late - early for late, early in zip(values, earlier, strict=True)])
            phase = replace(phase, mean_ms=_mean(values) - _mean(earlier))
        phases.append(phase)
        before = name
    return phases


def _name(name: str, before: str | None, times_ms: Mapping[str, Sequence[float]]) -> str:
    """Return the name of a phase, with those before it that are part of it for want of a function of their own."""
    first = 0 if before is None else _ORDER.index(before) + 1
    parts = [_PHASES[one] for one in _ORDER[first : _ORDER.index(name)] if one not in times_ms]
    return " and ".join([*parts, _PHASES[name]])


def _of(times: StepTimes, function: str, name: str) -> Phase:
    if function in times.times_ms:
        return _spread(name, times.times_ms[function])
    return _missing(name, times.why_not.get(function, "it could not be told apart"))


def _missing(name: str, why_not: str) -> Phase:
    return Phase(name=name, mean_ms=None, median_ms=None, quartiles_ms=None, why_not=why_not)


def _spread(name: str, values_ms: Sequence[float]) -> Phase:
    low_ms, median_ms, high_ms = statistics.quantiles(values_ms, n=4, method="inclusive")
    return Phase(name=name, mean_ms=_mean(values_ms), median_ms=median_ms, quartiles_ms=(low_ms, high_ms))


def _mean(values_ms: Sequence[float]) -> float:
    # of the times at either end: something else on the machine makes a few of them several times as long
    return float(winsorize(values_ms, 0.1).mean())


FILE = "step_phases.json"
VERSION = 1
FUNCTIONS = frozenset({"data", "copy", "forward", "loss", "gradients", "update", "metrics", "whole", "step"})
PHASES = ("data", "copy", "forward", "loss", "backward", "optimizer", "rest")
"""Phases of a step with marks."""

_MOST_BYTES = 1 << 20
_MOST_ROUNDS = 1000
_MOST_PLACES, _MOST_NAMES = 50, 5


@dataclass(frozen=True, kw_only=True)
class Place:
    """Tensors or operations of one kind on one device."""

    what: str
    device: str
    count: int
    names: tuple[str, ...]


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
    """

    held: tuple[tuple[float, float], ...] = ()
    draws: bool = False
    error: str | None = None
    of: str = ""
    compiled: str = ""
    device: str = ""
    batch_size: int | None = None
    times_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    marked_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    plain_ms: tuple[float, ...] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Place, ...] = ()


def read_step_times(path: Path) -> StepTimes | None:
    """Return the times in a file; None if there is no file.

    Raises:
        ValueError: It holds something else.
        OSError: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return parse_step_times(data.decode())


def parse_step_times(text: str) -> StepTimes:
    """Return the times in a text.

    Raises:
        ValueError: It holds something else.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict) or found.get("v", VERSION) != VERSION:
        raise ValueError("no times of a step, or of another version")
    if "error" in found:
        return StepTimes(error=_text(found["error"]))
    is_marked = "marked_ms" in found
    times_ms = {} if is_marked else _named_times(found.get("times_ms"), FUNCTIONS)
    marked_ms = _named_times(found["marked_ms"], PHASES) if is_marked else {}
    if (
        len({len(values) for name, values in (*times_ms.items(), *marked_ms.items()) if is_marked or name != "copy"})
        > 1
    ):
        raise ValueError("functions were timed in different numbers of rounds")
    size = found.get("batch_size")
    return StepTimes(
        held=_held(found.get("held", [])),
        draws=found.get("draws") is True,
        of=_text(found.get("of")),
        compiled=_text(found.get("compiled")),
        device=_text(found.get("device")),
        batch_size=None if size is None else int(_number(size, 1e12)),
        times_ms=times_ms,
        marked_ms=marked_ms,
        plain_ms=_step_times(found.get("plain_ms")) if is_marked else (),
        why_not={
            _known(name, (*FUNCTIONS, *PHASES)): _text(why) for name, why in _mapping(found.get("why_not")).items()
        },
        places=_places(found.get("places", [])),
    )


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object in its place")
    return value


def _named_times(value: Any, names: Collection[str]) -> dict[str, tuple[float, ...]]:
    return {_known(name, names): _step_times(values) for name, values in _mapping(value).items()}


def _known(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise ValueError(f"an unknown function: {name[:40]!r}")
    return name


def _places(values: Any) -> tuple[Place, ...]:
    if not isinstance(values, list) or len(values) > _MOST_PLACES:
        raise ValueError("no places")
    return tuple(_place(_mapping(value)) for value in values)


def _place(row: Mapping[str, Any]) -> Place:
    names = row.get("names")
    if not isinstance(names, list):
        raise ValueError("no names")
    return Place(
        what=_text(row.get("what")),
        device=_text(row.get("device")),
        count=int(_number(row.get("count"), 1e9)),
        names=tuple(_text(name) for name in names[:_MOST_NAMES]),
    )


def _step_times(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not 2 <= len(values) <= _MOST_ROUNDS:
        raise ValueError("too few times, or too many")
    return tuple(_number(value, 1e7) for value in values)


def _held(values: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(values, list) or len(values) > _MOST_ROUNDS:
        raise ValueError("no times of the trial")
    held, before_s = [], 0.0
    for pair in values:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("no time of the trial")
        begin_s, end_s = (_number(value, 1e9) for value in pair)
        if not before_s <= begin_s <= end_s:
            raise ValueError("times of the trial out of order")
        held.append((begin_s, end_s))
        before_s = end_s
    return tuple(held)


def _number(value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no number in its place")
    if not 0 <= value <= most:
        raise ValueError("a number out of its range")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text in its place")
    return "".join(letter for letter in " ".join(value.split()) if letter.isprintable())[:300]


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
