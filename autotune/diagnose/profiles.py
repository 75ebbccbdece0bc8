"""Profiles of a trainer's step and input pipeline, from trials outside of any study."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from autotune.clock import Clock
from autotune.diagnose.findings import percent
from autotune.errors import TrialError
from autotune.files import read_beginning
from autotune.measure.cycles import Series
from autotune.measure.utilization import period_of
from autotune.measure.window import Window, main_stream, measure_trial, stages_between, steady_window
from autotune.records import Ending, Measurement, TraineeEvent, TrialPhase
from autotune.search.gpus import busy_remarks, trial_gpus, watched_gpus
from autotune.search.preflight import TrialWatch
from autotune.search.problem import Problem
from autotune.stage_times import PipelineTimes
from autotune.study.storage.lock import sole_search
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder
from autotune.trial.instruments import Instruments, gpu_collector
from autotune.trial.launch import Guard, ProcessRunner, end_orphans
from autotune.trial.outcome import EXPLANATIONS, TrialEvidence, ending_of
from autotune.trial.protection import CheckpointBackups

# Profile of the step: phases, and the operations that take longest.


STEP_VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that requests a profile from the code inside the trainer."""

BEGINS = "the step will be profiled"
"""Text of the note event of a process that will write a profile."""


def profile_step(problem: Problem, clock: Clock, *, ends_s: float = math.inf) -> tuple[StepProfile, tuple[str, ...]]:
    """Profile the step of a trainer with today's values in a separate trial; also return remarks for the user.

    Args:
        ends_s: Latest end of the trial, on the monotonic clock.

    Raises:
        AutotuneError: The trial cannot run, or had too few steps.
    """
    environment = {STEP_VARIABLE: "1"}
    # longest_s counts from the first step, including the profile
    trial = make_trial(
        problem, clock, "step", environment, _is_profiled, _before_profiler, longest_s=300.0, ends_s=ends_s
    )
    seen = _seen(trial.folder.path)
    if seen is None and trial.trouble is not None:
        raise trial.trouble
    if seen is None:
        begun = _has_begun(trial.events)
        seen = SeenSteps(why_not="too few steps for a profile before the trial ended" if begun else "")
    profile = step_profile(seen, _plain_steps(trial, seen))
    trial.folder.delete()
    return profile, trial.remarks


def _seen(folder: Path) -> SeenSteps | None:
    try:
        return read_seen_steps(folder / STEP_FILE)
    except (OSError, ValueError) as error:
        return SeenSteps(why_not=_line(f"the profile inside the trainer cannot be read: {error}"))


def _is_profiled(folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether the profile is written, or no process announced one within 8 s of steps."""
    if _seen(folder) is not None:
        return True
    if _has_begun(events):
        return False
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > 10 and now_s > steps[0].t_s + 8.0


def _has_begun(events: Sequence[TraineeEvent]) -> bool:
    return any(event.kind == "note" and event.text == BEGINS for event in events)


def _before_profiler(folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    seen = _seen(folder)
    begin_s = math.inf if seen is None else seen.profiler_begin_s
    return steady_window([event for event in events if event.t_s < begin_s])


def _plain_steps(trial: MadeTrial, seen: SeenSteps) -> PlainSteps:
    window, gpu_utilization = trial.window, trial.measurement.gpu_utilization if trial.measurement else None
    if window is None:
        if seen.phases_ms:
            return PlainSteps()
        raise TrialError(
            "cannot profile the step: too few steps were seen",
            where=str(trial.folder.path),
            remedy="The trial needs about a hundred steps: make sure that the config does not end the training before.",
        )
    waits_s = None if window.waits_s is None else np.nan_to_num(window.waits_s)
    return PlainSteps(
        steps_ms=_in_ms(window.durations_s, window, gpu_utilization),
        waits_ms=None if waits_s is None else _in_ms(waits_s, window, gpu_utilization),
        steps=window.steps,
        batch_size=None if window.samples is None else float(np.median(window.samples)),
        gpu_utilization=gpu_utilization,
    )


def _in_ms(values_s: Series, window: Window, gpu_utilization: float | None) -> list[float]:
    """Return the values of all steps in ms; with a GPU, means over 1 s, because steps end when enqueued."""
    parts = window.steps if gpu_utilization is None else max(1, min(int(window.time_s), window.steps))
    return [1000.0 * float(part.mean()) for part in np.array_split(values_s, parts)]


@dataclass(frozen=True, kw_only=True)
class PlainSteps:
    """Steps as reported in every trial, before the framework's profiler starts.

    Attributes:
        steps_ms: Times of single steps, or means over parts of the window.
        waits_ms: Waits for data, likewise; None if unknown.
    """

    steps_ms: Sequence[float] = ()
    waits_ms: Sequence[float] | None = None
    steps: int = 0
    batch_size: float | None = None
    gpu_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a training step.

    Attributes:
        mean_ms: Mean with the longest and shortest tenth winsorized. Means add up, unlike medians.
        tail_ms: 95th and 99th percentile.
        why_not: Reason that it was not measured.
    """

    name: str
    mean_ms: float | None
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
    tail_ms: tuple[float, float] | None = None
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Phases and longest operations of a training step; `why_not` is the reason that some are missing."""

    framework: str | None
    batch_size: float | None
    steps: int
    phases: tuple[Phase, ...]
    step: Phase
    gpu_utilization: float | None = None
    operations: tuple[Operation, ...] = ()
    profiled_steps: int = 0
    why_not: str | None = None

    @property
    def verdict(self) -> str:
        """Sentence about the longest phase and its meaning, and about uneven steps."""
        known = [(phase.mean_ms, phase.name) for phase in self.phases if phase.mean_ms is not None]
        step_ms, (most_ms, most) = self.step.mean_ms, max(known, default=(0.0, ""))
        if not step_ms or len(known) < 2:
            return "The longest phase of the step is unknown: its phases were not measured."
        about = {
            "data": "waiting for data is the limit; `autotune profile pipeline` shows which part",
            "the rest": "Python and callbacks between the phases are the limit, not arithmetic",
            ALL_BUT_DATA: "the step itself is the limit, not its data",
            DATA_AND_FORWARD: "its batches come from no DataLoader, so loading and computing are indistinguishable",
        }
        arithmetic = "the arithmetic of the step is the limit, not its data"
        text = (
            f"{most[0].upper()}{most[1:]} takes {percent(most_ms / step_ms)} of the step: {about.get(most, arithmetic)}"
        )
        if self.step.tail_ms and self.step.median_ms and self.step.tail_ms[1] > 2.0 * self.step.median_ms:
            times = f"{self.step.tail_ms[1] / self.step.median_ms:.1f}"
            text = f"{text}; one step in a hundred takes {times} times the median"
        return f"{text}."


ALL_BUT_DATA = "all but data"
"""Phase of a step that is not divided further."""

DATA_AND_FORWARD = "data and forward"
"""Phase of a step if the start of the forward pass is unknown."""


def step_profile(seen: SeenSteps, training: PlainSteps) -> StepProfile:
    """Return the profile of steps; those reported by the trial are unused if `seen` has phases."""
    steps_ms: Sequence[float]
    if seen.phases_ms:
        steps_ms = [sum(step) for step in zip(*seen.phases_ms.values(), strict=True)]
        names = {"rest": "the rest"} if "data" in seen.phases_ms else {"forward": DATA_AND_FORWARD}
        phases = [_phase(names.get(name, name), values_ms) for name, values_ms in seen.phases_ms.items()]
    else:
        steps_ms, waits_ms = training.steps_ms, training.waits_ms
        phases = [_phase("data", waits_ms, "the trainer does not report its waits for data")]
        phases += _traced(seen.traced_ms, phases[0], _phase("step", steps_ms))
    why_not: str = seen.why_not
    if not why_not and not seen.operations:
        unseen = "the profiler recorded no operation" if seen.framework else "neither PyTorch nor TensorFlow trains"
        why_not = f"operations are unknown: {unseen}"
    return StepProfile(
        framework=seen.framework,
        batch_size=training.batch_size,
        steps=len(steps_ms) if seen.phases_ms else training.steps,
        phases=tuple(phases),
        step=_phase("step", steps_ms),
        gpu_utilization=training.gpu_utilization,
        operations=seen.operations,
        profiled_steps=seen.steps if seen.operations else 0,
        why_not=why_not or None,
    )


def _traced(traced_ms: Mapping[_Phase, Sequence[float]], data: Phase, step: Phase) -> list[Phase]:
    """Return the phases from a profiler, scaled to steps without it, and the remainder of the step."""
    if step.mean_ms is None:
        return []
    longer = _phase("step", traced_ms["step"]).mean_ms if traced_ms else None
    shorter = step.mean_ms / longer if longer else 1.0
    seen = [_phase(name, [shorter * ms for ms in values]) for name, values in traced_ms.items() if name != "step"]
    return [*seen, *_all_but([data, *seen], step, "the rest" if seen else ALL_BUT_DATA)]


def _all_but(known: Sequence[Phase], step: Phase, name: str) -> list[Phase]:
    """Return the remainder of the step after some phases, from means: waits may be means over steps."""
    times_ms = [(one.mean_ms, one.median_ms) for one in known if one.mean_ms is not None and one.median_ms is not None]
    if step.mean_ms is None or step.median_ms is None or len(times_ms) < len(known):
        return []
    mean_ms = max(0.0, step.mean_ms - sum(mean_ms for mean_ms, _ in times_ms))
    median_ms = max(0.0, step.median_ms - sum(median_ms for _, median_ms in times_ms))
    return [Phase(name=name, mean_ms=mean_ms, median_ms=median_ms, quartiles_ms=None)]


def _phase(name: str, values_ms: Sequence[float] | None, why_not: str | None = None) -> Phase:
    if values_ms is None:
        return Phase(name=name, mean_ms=None, median_ms=None, quartiles_ms=None, why_not=why_not)
    shortest_ms, low_ms, median_ms, high_ms, longest_ms, *tail_ms = np.quantile(
        values_ms, (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    ).tolist()
    return Phase(
        name=name,
        # winsorized by a tenth at each end, because other load makes a few times several times as long
        mean_ms=float(np.clip(values_ms, shortest_ms, longest_ms).mean()),
        median_ms=median_ms,
        quartiles_ms=(low_ms, high_ms),
        tail_ms=(tail_ms[0], tail_ms[1]),
    )


# File of the profile inside the trainer; untrusted, because the trainer may write it.


_Phase = Literal["data", "forward", "loss", "backward", "optimizer", "rest", "step"]
_Ms = Annotated[float, Meta(ge=0.0, le=1e8)]
_StepsMs = Annotated[tuple[_Ms, ...], Meta(min_length=1, max_length=1000)]


STEP_FILE = "step_profile.json"
STEP_VERSION: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Operation of a step: mean executions, and mean self time on the host and on a GPU."""

    name: str
    times: Annotated[float, Meta(ge=0.0, le=1e9)]
    host_ms: _Ms
    device_ms: _Ms


@dataclass(frozen=True, kw_only=True)
class SeenSteps:
    """Steps as recorded inside the trainer.

    Attributes:
        profiler_begin_s: Start of its profiler, on the monotonic clock.
        phases_ms: Times of each phase in each step before the profiler; equal lengths.
        traced_ms: Times of each phase and of the whole step, from the profiler.
    """

    v: Literal[1] = STEP_VERSION
    framework: Literal["PyTorch", "TensorFlow"] | None = None
    profiler_begin_s: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    steps: Annotated[int, Meta(ge=1, le=10**6)] = 1
    phases_ms: Mapping[_Phase, _StepsMs] = field(default_factory=dict)
    traced_ms: Mapping[_Phase, _StepsMs] = field(default_factory=dict)
    operations: Annotated[tuple[Operation, ...], Meta(max_length=50)] = ()
    why_not: str = ""


def read_seen_steps(path: Path) -> SeenSteps | None:
    """Return the steps in a file; None if there is no file. Raises an OSError or ValueError."""
    most_bytes = 1 << 20
    try:
        with open(path, "rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    seen = msgspec.json.decode(data, type=SeenSteps)
    uneven = any(len(set(map(len, one.values()))) > 1 for one in (seen.phases_ms, seen.traced_ms))
    if seen.framework is None or uneven or (seen.traced_ms and "step" not in seen.traced_ms):
        raise ValueError("steps of no framework, or phases of different numbers of steps")
    operations = tuple(replace(one, name=_line(one.name)) for one in seen.operations)
    return replace(seen, operations=operations, why_not=_line(seen.why_not))


def _line(text: str) -> str:
    """Return a text from the trainer as one line of at most 300 printable characters."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:300]


# Profile of the input pipeline: loader alone, waits in training.


STAGES_VARIABLE = "AUTOTUNE_PROFILE_STAGES"
_PLAIN_S, _PLAIN_STEPS = 12.0, 30  # least time and steps without phases


@dataclass(frozen=True, kw_only=True)
class PipelineProfile:
    """Profile of an input pipeline.

    Attributes:
        loading: Batch times of the loader alone, without steps.
        waits: Waits of training for batches.
        replayed: Step times on repeated batches, without loading.
        idle_fraction: Share of the time in which the step waits for a batch.
        gain_if_free: Speed ratio of training on repeated batches.
        loading_stages: Stages of loading an example, if the trainer wraps them.
        stages: Times of a pipeline's two stages over two devices.
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


def profile_pipeline(
    problem: Problem, clock: Clock, *, ends_s: float = math.inf
) -> tuple[PipelineProfile, tuple[str, ...]]:
    """Profile the input pipeline of a trainer with today's values, as in `profile_step`."""
    environment = {"AUTOTUNE_PHASE_S": "2", "AUTOTUNE_PHASE_CHUNK_S": "0", STAGES_VARIABLE: "1"}
    # longest_s counts from the first step
    trial = make_trial(
        problem, clock, "pipeline", environment, _is_phased_enough, _longest_training, longest_s=60.0, ends_s=ends_s
    )
    if trial.trouble is not None:
        raise trial.trouble
    profile = pipeline_profile(trial, phased_events(trial.events))
    trial.folder.delete()
    return profile, trial.remarks


def pipeline_profile(trial: MadeTrial, found: PhasedEvents) -> PipelineProfile:
    """Return the profile from the events of a trial; raise a TrialError for too few steps."""
    steps = batch_times([window.durations_s for window in found.train])
    if steps is None:
        raise TrialError(
            "cannot profile the pipeline: too few steps were seen",
            where=str(trial.folder.path),
            remedy="The trial needs some hundred steps: make sure that the config does not end the training before.",
        )
    loading, replayed = batch_times(found.loads_s), batch_times([window.durations_s for window in found.replay])
    waits_s = [np.nan_to_num(window.waits_s) for window in found.train if window.waits_s is not None]
    idle = None
    if len(waits_s) == len(found.train):
        idle = min(1.0, float(sum(map(np.sum, waits_s))) / sum(window.time_s for window in found.train))
    samples = [window.samples.mean() for window in found.train if window.samples is not None]
    unseen = found.why_no_load or "the trainer ended too early, or its loader is unsupported"
    measurement, stages = trial.measurement, read_loading_stages(trial.folder.path / STAGES_FILE)
    return PipelineProfile(
        batch_samples=float(np.mean(samples)) if samples else found.load_samples,
        loading=loading,
        why_no_loading=None if loading else unseen,
        waits=batch_times(waits_s) if idle is not None else None,
        steps=steps,
        replayed=replayed,
        idle_fraction=idle,
        gain_if_free=steps.mean_ms / replayed.mean_ms if replayed and replayed.mean_ms else None,
        loading_stages=stages,
        stages=measurement.stages if measurement else None,
        gpu_utilization=measurement.gpu_utilization if measurement else None,
        sentence=_sentence(steps, loading, replayed, idle, stages),
    )


def _sentence(
    steps: BatchTimes,
    loading: BatchTimes | None,
    replayed: BatchTimes | None,
    idle: float | None,
    stages: Sequence[LoadingStage],
) -> str:
    share = percent(idle or 0.0)
    if loading is None and idle is not None:
        return f"The step waits {share} of the time; the speed of the loader alone was not measured."
    if loading is None:
        return "Neither waits nor the loader alone can be measured with this trainer."
    computing_ms = min(replayed.mean_ms, steps.mean_ms) if replayed else steps.mean_ms * (1.0 - (idle or 0.0))
    rates = (
        f"alone, the loader yields {1000.0 / loading.mean_ms:.3g} batches/s and the steps consume "
        f"{1000.0 / computing_ms:.3g} batches/s"
    )
    if computing_ms < 0.9 * loading.mean_ms:  # a loader below 0.9 of the steps' rate is the limit
        text = "Loading is the limit"
    elif idle is not None and idle >= 0.05:  # smaller waits are not reported
        text = "Loading alone is fast enough, but not in parallel with the steps, or not evenly"
    else:
        text = "The loader keeps up"
    if idle is None:
        return f"{text}: {rates}."
    waits = f"the step waits {share} of the time, {60.0 * idle:.3g} s of each minute"
    text = f"{text}: {rates}, and {waits}."
    if idle < 0.05:
        return text
    if first := max(stages, default=None, key=lambda stage: stage.fraction):
        without_ms = max(computing_ms, loading.mean_ms * (1.0 - first.fraction))
        text = (
            f"{text} Improve {first.name} first, {percent(first.fraction)} of loading: at most "
            f"{steps.mean_ms / without_ms:.2f}x."
        )
    return f"{text} If loading cost nothing: {steps.mean_ms / computing_ms:.2f}x."


def _is_phased_enough(_folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether all phases ran often enough, or plain training did if there are none."""
    changes = [event for event in events if event.kind == "phase"]
    if changes:
        alone = now_s - changes[-1].t_s > _PLAIN_S  # all other phases were skipped
        return alone or phased_events(events).cycles >= 3
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > _PLAIN_STEPS and now_s - steps[0].t_s > _PLAIN_S


def _longest_training(_folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    windows = phased_events(events).train
    return max(windows, key=lambda window: window.time_s) if windows else steady_window(events)


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Cycle in the times of successive batches: mean times at the slowest position and at the others."""

    batches: float
    slow_ms: float
    others_ms: float


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Distribution of batch times; the coefficient of variation is None if the mean is 0."""

    batches: int
    mean_ms: float
    sd_ms: float
    min_ms: float
    max_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    variation: float | None
    cycle: Cycle | None


def batch_times(stretches_s: Sequence[Series]) -> BatchTimes | None:
    """Return the distribution of times in stretches of successive batches; None if there are fewer than two."""
    stretches_ms = [1000.0 * stretch for stretch in stretches_s if len(stretch)]
    if sum(len(stretch) for stretch in stretches_ms) < 2:
        return None
    all_ms = np.concatenate(stretches_ms)
    mean_ms, sd_ms = float(all_ms.mean()), float(all_ms.std(ddof=1))
    median_ms, p95_ms, p99_ms = (float(value) for value in np.percentile(all_ms, (50, 95, 99)))
    variation = sd_ms / mean_ms if mean_ms > 0 else None
    return BatchTimes(
        batches=len(all_ms),
        mean_ms=mean_ms,
        sd_ms=sd_ms,
        min_ms=float(all_ms.min()),
        max_ms=float(all_ms.max()),
        median_ms=median_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        variation=variation,
        cycle=_cycle(stretches_ms) if variation is not None and variation >= 0.1 else None,
    )


def _cycle(stretches_ms: Sequence[Series]) -> Cycle | None:
    long_enough = [stretch for stretch in stretches_ms if len(stretch) >= 24]
    if not long_enough:
        return None
    rows = []
    for stretch in long_enough:
        # clip the longest times: a single long batch is not a cycle
        clipped = np.minimum(stretch, max(np.quantile(stretch, 0.98), 3.0 * np.median(stretch)))
        rows.append(clipped - clipped.mean())
    batches = period_of(rows)
    if batches is None or batches < 2.0 - 0.1:
        return None
    longest = int(np.argmax([len(row) for row in rows]))
    row = rows[longest]
    means, place = _by_place(row, batches)
    # share of the variance that the position in the cycle explains beyond chance: bursts may peak at any lag
    by_chance = (len(means) - 1) / (len(row) - 1)
    if (float(means[place].var() / row.var()) - by_chance) / (1.0 - by_chance) < 0.3:
        return None
    means, _ = _by_place(long_enough[longest], batches)
    slowest = int(means.argmax())
    return Cycle(batches=batches, slow_ms=float(means[slowest]), others_ms=float(np.delete(means, slowest).mean()))


def _by_place(row: Series, batches: float) -> tuple[Series, NDArray[np.intp]]:
    whole = round(batches)  # an estimate of 7.98 for a period of 8 would drift
    # within 3 % of a whole number
    exact = whole if abs(batches - whole) <= 0.03 * batches else batches
    place = np.asarray(np.floor(np.arange(len(row)) % exact), dtype=np.intp)
    return np.array([row[place == one].mean() for one in range(int(place.max()) + 1)]), place


@dataclass(frozen=True, kw_only=True)
class PhasedEvents:
    """Steps and loads of a trial.

    Attributes:
        replay: Steady windows of training on repeated batches.
        loads_s: Times of batches loaded without a step, by stretch, without prefetched ones.
        cycles: Number of completed stretches of training.
    """

    train: tuple[Window, ...]
    replay: tuple[Window, ...]
    loads_s: tuple[Series, ...]
    load_samples: float | None
    why_no_load: str | None
    cycles: int


def phased_events(events: Sequence[TraineeEvent]) -> PhasedEvents:
    """Group the events of a trial by phase; without phases, all are training."""
    stream = main_stream(events)
    own = [event for event in events if event.stream == stream]
    stretches: list[tuple[TrialPhase, list[TraineeEvent]]] = [(TrialPhase.TRAIN, [])]
    for event in own:
        if event.kind == "phase" and event.phase is not None:
            stretches.append((event.phase, []))
        stretches[-1][1].append(event)
    has_phases = len(stretches) > 1
    # before the first phase: warm-up
    counted = stretches[1:] if has_phases else stretches
    loads = [[one for one in within if one.kind == "load"] for phase, within in counted if phase is TrialPhase.LOAD]
    known = [one.samples / one.batches for load in loads for one in load if one.samples is not None and one.batches]
    reasons = [event.text for event in own if event.kind == "unphased" and event.text]
    return PhasedEvents(
        train=_windows(counted, TrialPhase.TRAIN),
        replay=_windows(counted, TrialPhase.REPLAY),
        loads_s=tuple(times for times in (_batches_s(load) for load in loads) if len(times)),
        load_samples=float(np.mean(known)) if known else None,
        why_no_load=next((reason for reason in reasons if reason.startswith("load")), reasons[-1] if reasons else None),
        cycles=sum(phase is TrialPhase.TRAIN for phase, _ in counted[:-1]) if has_phases else 0,
    )


def _windows(stretches: Sequence[tuple[TrialPhase, list[TraineeEvent]]], phase: TrialPhase) -> tuple[Window, ...]:
    return tuple(window for one, within in stretches if one is phase and (window := steady_window(within)) is not None)


def _batches_s(loads: Sequence[TraineeEvent]) -> Series:
    known = [(load.duration_s, load.batches) for load in loads if load.duration_s is not None and load.batches]
    each_s = np.array([duration_s / batches for duration_s, batches in known for _ in range(batches)])
    drawn_s = np.cumsum(each_s)
    # skip the first 15 % of the time: prefetched batches arrive at once
    return np.asarray(each_s[drawn_s > 0.15 * drawn_s[-1:].sum()])


STAGES_FILE = "loading_stages.json"
STAGES_VERSION = 1


class _StageSums(msgspec.Struct, frozen=True):
    """Sums of a stage's calls, as the trainer writes them."""

    calls: Annotated[int, Meta(ge=1, le=10**12)]
    busy_s: Annotated[float, Meta(ge=0.0, le=1e9)]


class _Stages(msgspec.Struct, frozen=True):
    v: Literal[1]
    stages: Annotated[dict[Annotated[str, Meta(pattern="^[a-z][a-z ]{0,30}$")], _StageSums], Meta(max_length=32)]


@dataclass(frozen=True, kw_only=True)
class LoadingStage:
    """Stage of loading an example; times are those in its worker."""

    name: str
    examples: int
    mean_ms: float
    fraction: float


def read_loading_stages(path: Path) -> tuple[LoadingStage, ...]:
    """Return the stages in a file; empty if it is missing or invalid."""
    try:
        stages = msgspec.json.decode(read_beginning(path, 1 << 16), type=_Stages).stages
    except ValueError:
        return ()
    all_s = sum(stage.busy_s for stage in stages.values())
    return tuple(
        LoadingStage(
            name=name,
            examples=stage.calls,
            mean_ms=1000.0 * stage.busy_s / stage.calls,
            fraction=stage.busy_s / all_s if all_s else 0.0,
        )
        for name, stage in stages.items()
    )


# Trials of a profile.


IsOver = Callable[[Path, Sequence[TraineeEvent], float], bool]
"""Whether a trial may stop, from its folder, its events so far and the time."""

WindowOf = Callable[[Path, Sequence[TraineeEvent]], Window | None]
"""The measured window, if any, from a trial's folder and all its events."""


@dataclass(frozen=True, kw_only=True)
class MadeTrial:
    """Result of one trial; `trouble` is the error of a failed one."""

    events: Sequence[TraineeEvent]
    window: Window | None
    measurement: Measurement | None
    folder: TrialFolder
    trouble: TrialError | None
    remarks: tuple[str, ...] = ()


def make_trial(
    problem: Problem,
    clock: Clock,
    label: str,
    environment: Mapping[str, str],
    is_over: IsOver,
    window_of: WindowOf,
    *,
    longest_s: float,
    ends_s: float,
) -> MadeTrial:
    """Run one trial of today's config; locks out searches of the same config.

    Args:
        longest_s: Time limit from the first step.
        ends_s: Latest end, on the monotonic clock.

    Raises:
        AutotuneError: A search is running, the trial cannot start, or it overwrote the user's checkpoints.
    """
    problem.state.create()
    group = f"profile-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    name, start_timeout_s = f"{group}-{label}", problem.limits.start_timeout_s
    remarks = list(problem.settings.remarks)
    with (
        sole_search(problem.state.search_lock(problem.study, problem.machine.name), problem.study),
        Guard() as guard,
        gpu_collector(watched_gpus(problem), guard, problem.state.searches, clock, remarks.append) as collector,
        CheckpointBackups(problem.trainer, clock, name=group, remark=remarks.append) as checkpoints,
        Instruments.of_machine(clock, collector) as instruments,
    ):
        end_orphans(problem.state.trials(problem.study), clock)
        remarks += [f"{remark}; its load affects these times." for remark in busy_remarks(problem, clock)]
        values = problem.space.baseline
        plan = plan_trial(problem.trainer, problem.space.keys(values), trial=name)
        plan = replace(plan, env={**plan.env, **environment})
        folder = problem.trainer.make_folder(name)
        instruments.expect(plan.trial_id, trial_gpus(problem, values), folder.samples)

        def is_done(events: Sequence[TraineeEvent], now_s: float) -> bool:
            return is_over(folder.path, events, now_s) or now_s > (watch.first_step_s or now_s) + longest_s

        watch = TrialWatch(clock, instruments, start_timeout_s, is_done)
        limit_s = clock.now_s() + start_timeout_s + longest_s
        trial_exit = problem.trainer.run(ProcessRunner(guard, clock), plan, watch, min(limit_s, ends_s))
        window, measurement = window_of(folder.path, watch.events), None
        if window is not None:
            host, gpu = instruments.usage(window, started_s=trial_exit.started_s)
            stages = stages_between(watch.events, window)
            measured = measure_trial(window, started_s=trial_exit.started_s, host=host, gpu=gpu)
            measurement = replace(measured, stages=stages)
        if loss := checkpoints.loss("the trial"):
            raise loss
    folder.discard_temporary()
    evidence = TrialEvidence(stdout_tail=folder.stdout_tail(), why_not_started=watch.why_not_started)
    ending, detail = ending_of(trial_exit, watch.events, evidence)
    trouble = None
    has_steps = watch.first_step_s is not None
    if ending not in (Ending.STOPPED, Ending.COMPLETED) or not has_steps:
        seen, explained = "training failed" if has_steps else "no step was seen", EXPLANATIONS[ending]
        text = f"{seen}: {explained.sentence}{f' ({detail})' if detail else ''}"
        trouble = TrialError(text, where=str(folder.path), remedy=explained.remedy)
    return MadeTrial(
        events=watch.events,
        window=window,
        measurement=measurement,
        folder=folder,
        trouble=trouble,
        remarks=tuple(remarks),
    )
