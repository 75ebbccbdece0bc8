"""Profile of a trainer's input pipeline, in a trial made for it: the loader alone, and the waits in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.errors import TrialError
from autotune.measure.window import Window, steady_window
from autotune.problem.problem import Problem
from autotune.profile.batch_times import BatchTimes, batch_times
from autotune.profile.loading_stages import FILE, VARIABLE, LoadingStage, read_loading_stages
from autotune.profile.phased_events import PhasedEvents, phased_events
from autotune.profile.trials import MadeTrial, ProfileTrials, TrialRequest
from autotune.records import TraineeEvent
from autotune.stage_times import PipelineTimes
from autotune.statistics import Series

PHASE_S = 2.0
_ENVIRONMENT = {"AUTOTUNE_PHASE_S": f"{PHASE_S:g}", "AUTOTUNE_PHASE_CHUNK_S": "0", VARIABLE: "1"}
_CYCLES = 3  # of the phases
_LONGEST_S = 60.0  # from the first step on
_PLAIN_S, _PLAIN_STEPS = 12.0, 30  # where there are no phases
_WAITS = 0.05  # share of the time from which on waiting is worth a word
_UNSEEN = "the trainer ended before, or its loader is not seen"
_LIMITS = 0.9  # rate of the loader as a part of the steps' below which it is the limit


@dataclass(frozen=True, kw_only=True)
class PipelineProfile:
    """Profile of an input pipeline.

    Attributes:
        batch_samples: Samples in a batch; None if that is not known.
        loading: Times of batches that the loader gave alone, with no step beside it; None if it could not be.
        why_no_loading: Reason for that; None if it could.
        waits: Waits of the training for its batches; None if they are not seen.
        steps: Times of the steps of the training.
        replayed: Times of steps on batches that are kept: without loading; None if they could not be kept.
        idle_fraction: Share of the training's time in which the step waited for a batch; None if that is not seen.
        gain_if_free: Speed of training on kept batches as a multiple of the training's; None if not known.
        loading_stages: Times of the stages of loading an example, where the trainer wraps them; empty where not.
        stages: Times of a pipeline's two stages, over two devices; None without.
        gpu_utilization: Share of the training's time in which a GPU was busy; None if not known.
        sentence: What it comes to, in a sentence.
    """

    batch_samples: float | None
    loading: BatchTimes | None
    why_no_loading: str | None
    waits: BatchTimes | None
    steps: BatchTimes
    replayed: BatchTimes | None
    idle_fraction: float | None
    gain_if_free: float | None
    loading_stages: tuple[LoadingStage, ...]
    stages: PipelineTimes | None
    gpu_utilization: float | None
    sentence: str


def profile_pipeline(problem: Problem, trials: ProfileTrials) -> PipelineProfile:
    """Profile the input pipeline of a trainer with today's values.

    Args:
        problem: The config and the command.
        trials: Makes the trial.

    Raises:
        TrialError: The trainer made too few steps.
        AutotuneError: The trial cannot be made.
    """
    trial = trials.make(
        TrialRequest(
            label="pipeline",
            values=problem.space.baseline,
            environment=_ENVIRONMENT,
            is_over=_is_over,
            window_of=_measured,
            longest_s=_LONGEST_S,
        )
    )
    if trial.trouble is not None:
        raise trial.trouble
    profile = pipeline_profile(trial, phased_events(trial.events))
    trial.folder.delete()
    return profile


def pipeline_profile(trial: MadeTrial, found: PhasedEvents) -> PipelineProfile:
    """Return the profile that the events of a trial make.

    Args:
        trial: The trial.
        found: Its events by phase.

    Raises:
        TrialError: There are too few steps.
    """
    steps = batch_times([window.durations_s for window in found.train])
    if steps is None:
        raise TrialError(
            "too few steps were seen to profile the pipeline",
            where=str(trial.folder.path),
            remedy="The trial needs some hundred steps: see that the config does not end the training before.",
        )
    replayed = batch_times([window.durations_s for window in found.replay])
    waited = [window for window in found.train if window.waits_s is not None]
    idle = None
    if len(waited) == len(found.train):
        idle = min(1.0, sum(float(_waits(one).sum()) for one in waited) / sum(one.time_s for one in waited))
    samples = [window.samples.mean() for window in found.train if window.samples is not None]
    loading = batch_times(found.loads_s)
    gain = steps.mean_ms / replayed.mean_ms if replayed and replayed.mean_ms else None
    measurement = trial.measurement
    return PipelineProfile(
        batch_samples=float(np.mean(samples)) if samples else found.load_samples,
        loading=loading,
        why_no_loading=None
        if loading
        else (found.why_no_load or "the trainer ended before, or its loader is not seen"),
        waits=batch_times([_waits(window) for window in waited]) if idle is not None else None,
        steps=steps,
        replayed=replayed,
        idle_fraction=idle,
        gain_if_free=gain,
        loading_stages=read_loading_stages(trial.folder.path / FILE),
        stages=measurement.stages if measurement else None,
        gpu_utilization=measurement.gpu_utilization if measurement else None,
        sentence=_sentence(steps, loading, replayed, idle),
    )


def _sentence(steps: BatchTimes, loading: BatchTimes | None, replayed: BatchTimes | None, idle: float | None) -> str:
    """Return what the times come to."""
    waits = "" if idle is None else f"the step waits {idle:.0%} of the time"
    if loading is None:
        return (
            f"{waits[:1].upper()}{waits[1:]}; how fast the loader is alone was not measured."
            if waits
            else ("Neither waits nor the loader alone can be seen with this trainer.")
        )
    computing_ms = min(replayed.mean_ms, steps.mean_ms) if replayed else steps.mean_ms * (1.0 - (idle or 0.0))
    rates = (
        f"alone, the loader gives {1000.0 / loading.mean_ms:.3g} batches/s and the steps take "
        f"{1000.0 / computing_ms:.3g} batches/s"
    )
    if computing_ms < _LIMITS * loading.mean_ms:
        said = "Loading is the limit"
    elif idle is not None and idle >= _WAITS:
        said = "Loading is fast enough on its own, and not beside the steps, or not evenly"
    else:
        said = "The loader keeps up"
    return f"{said}: {', and '.join(part for part in (rates, waits) if part)}."


def _waits(window: Window) -> Series:
    return np.nan_to_num(window.waits_s) if window.waits_s is not None else np.zeros(window.steps)


def _is_over(_folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether all phases were gone through often enough, or there are none and plain training was seen."""
    steps = [event for event in events if event.kind == "step"]
    if any(event.kind == "phase" for event in events):
        changes = [event for event in events if event.kind == "phase"]
        alone = now_s - changes[-1].t_s > _PLAIN_S  # all others were left out
        return alone or phased_events(events).cycles >= _CYCLES
    return len(steps) > _PLAIN_STEPS and now_s - steps[0].t_s > _PLAIN_S


def _measured(_folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    """Return the longest stretch of plain training."""
    windows = phased_events(events).train
    return max(windows, key=lambda window: window.time_s) if windows else steady_window(events)
