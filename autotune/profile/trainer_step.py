"""Profile of a trainer's own step, in a trial made for it: the trainer's real model, its real batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.clock import Clock
from autotune.errors import TrialError
from autotune.measure.window import Window, main_stream, steady_window
from autotune.problem.problem import Problem
from autotune.profile.step_phases import StepProfile, Training, step_profile
from autotune.profile.step_times import FILE, StepTimes, read_step_times
from autotune.profile.trials import MadeTrial, TrialRequest, open_trials
from autotune.records import TraineeEvent
from autotune.statistics import Series

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that asks the code inside the trainer for a profile."""

NO_PROFILE = "no profile of the step: "
"""Begin of its notes on why there is none."""

BEGINS = "the parts of the step will be timed"
"""Note of a process that makes one."""

_LONGEST_S = 300.0  # from the first step on, with the profile
_LONGEST_WITHOUT_S, _STEPS_WITHOUT = 8.0, 10  # of training, after which it is clear that there will be no profile
_REFILLED_STEPS = 8  # after a block, where the loader had time to work ahead
_FEW_STEPS = 1
_AFTER_S = 2.0
_STRETCH_S = 1.0  # on an accelerator, over which steps are averaged: single ones end when they are enqueued
_UNKNOWN = (
    "its steps are made neither by Keras's fit or train_on_batch, nor by autotune.tf.TrainStep, nor by an optimizer of "
    "PyTorch"
)


@dataclass(frozen=True, kw_only=True)
class TrainerStep:
    """Profile of a trainer's step.

    Attributes:
        profile: The profile.
        remarks: Sentences for the user.
    """

    profile: StepProfile
    remarks: tuple[str, ...]


def profile_trainer_step(problem: Problem, clock: Clock, *, ends_s: float = math.inf) -> TrainerStep:
    """Profile the step of a trainer with today's values, in a trial of its own.

    Args:
        problem: The config and the command; runnable.
        clock: The machine's clock.
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
                longest_s=_LONGEST_S,
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
        return times.error is not None or not times.held or now_s > times.held[-1][1] + _AFTER_S
    if any(event.kind == "note" and event.text == BEGINS for event in events):
        return False
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > _STEPS_WITHOUT and now_s > steps[0].t_s + _LONGEST_WITHOUT_S


def _first_stretch(folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    """Return the steady window of the training before the profile."""
    times = _times(folder)
    if times is None or not times.held:
        return steady_window(events)
    return steady_window([event for event in events if event.t_s < times.held[0][0]])


def _windows(trial: MadeTrial, times: StepTimes | None) -> list[Window]:
    """Return the steady windows of the training: before the first block of the profile, and after each."""
    if times is None:
        return [trial.window] if trial.window else []
    skipped = _FEW_STEPS if times.draws else _REFILLED_STEPS
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
    parts = max(1, min(int(window.time_s / _STRETCH_S), window.steps))
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
