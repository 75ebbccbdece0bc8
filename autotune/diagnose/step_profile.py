"""Profile of a trainer's own step, in a trial made for it: its phases, and the operations that take longest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from autotune.clock import Clock
from autotune.diagnose.findings import percent
from autotune.diagnose.profile_trials import MadeTrial, TrialRequest, open_trials
from autotune.errors import TrialError
from autotune.measure.cycles import Series
from autotune.measure.window import Window, steady_window
from autotune.records import TraineeEvent
from autotune.search.problem import Problem

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that asks the code inside the trainer for a profile."""

BEGINS = "the step will be profiled"
"""Note of a process that makes one."""


def profile_trainer_step(
    problem: Problem, clock: Clock, *, ends_s: float = math.inf
) -> tuple[StepProfile, tuple[str, ...]]:
    """Profile the step of a trainer with today's values, in a trial of its own; return what the user should know, too.

    Args:
        problem: The config and the command; runnable.
        ends_s: Time at which the trial is ended at the latest, on the clock's monotonic time.

    Raises:
        TrialError: The trainer made too few steps.
        AutotuneError: The trial cannot be made.
    """
    with open_trials(problem, clock, ends_s=ends_s) as trials:
        trial = trials.make(
            TrialRequest(
                label="step",
                values=problem.space.baseline,
                environment={VARIABLE: "1"},
                is_over=_is_over,
                window_of=_before_profiler,
                longest_s=300.0,  # from the first step on, with the profile
            )
        )
        remarks = tuple(trials.remarks)
    seen = _seen(trial.folder.path)
    if seen is None and trial.trouble is not None:
        raise trial.trouble
    begun = _has_begun(trial.events)
    too_short = Line("too few steps were made for a profile before the trial ended" if begun else "")
    profile = step_profile(seen or SeenSteps(why_not=too_short), _training(trial, seen))
    trial.folder.delete()
    return profile, remarks


def _seen(folder: Path) -> SeenSteps | None:
    try:
        return read_seen_steps(folder / FILE)
    except (OSError, ValueError) as error:
        return SeenSteps(why_not=Line(f"the profile inside the trainer cannot be read: {error}"))


def _is_over(folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether the profile is made, or none will be and there were steps for 8 s."""
    if _seen(folder) is not None:
        return True
    if _has_begun(events):
        return False
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > 10 and now_s > steps[0].t_s + 8.0  # it is clear by then


def _has_begun(events: Sequence[TraineeEvent]) -> bool:
    return any(event.kind == "note" and event.text == BEGINS for event in events)


def _before_profiler(folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    seen = _seen(folder)
    begin_s = math.inf if seen is None else seen.profiler_begin_s
    return steady_window([event for event in events if event.t_s < begin_s])


def _training(trial: MadeTrial, seen: SeenSteps | None) -> Training:
    window, gpu_utilization = trial.window, trial.measurement.gpu_utilization if trial.measurement else None
    if window is None:
        if seen is not None and seen.phases_ms:
            return Training()
        raise TrialError(
            "too few steps were seen to say how long one takes",
            where=str(trial.folder.path),
            remedy="The trial needs about a hundred steps: see that the config does not end the training before.",
        )
    waits_s = None if window.waits_s is None else np.nan_to_num(window.waits_s)
    return Training(
        steps_ms=_in_ms(window.durations_s, window, gpu_utilization),
        waits_ms=None if waits_s is None else _in_ms(waits_s, window, gpu_utilization),
        steps=window.steps,
        batch_size=None if window.samples is None else float(np.median(window.samples)),
        gpu_utilization=gpu_utilization,
    )


def _in_ms(values_s: Series, window: Window, gpu_utilization: float | None) -> list[float]:
    """Return the values of all steps; with a GPU, where steps end when enqueued, means over a second each."""
    parts = window.steps if gpu_utilization is None else max(1, min(int(window.time_s), window.steps))
    return [1000.0 * float(part.mean()) for part in np.array_split(values_s, parts)]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps of the training as every trial reports them, before the framework's profiler is started.

    Attributes:
        steps_ms: Time of each step, or its mean over each of several stretches.
        waits_ms: Time that each waited for data, likewise; None where that is not known.
        batch_size: Samples in a batch; None if that is not known.
        gpu_utilization: Share of the time in which a GPU was busy; None if not known.
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
        mean_ms: Mean over the steps, with the longest and shortest tenth drawn in; None where it was not measured.
            Means add up, medians of skewed times do not.
        median_ms: Median over the steps; None where it was not measured.
        quartiles_ms: First and third quartile over the steps; None likewise.
        tail_ms: 95th and 99th percentile over the steps; None likewise.
        why_not: Reason that it was not measured; None where it was.
    """

    name: str
    mean_ms: float | None
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
    tail_ms: tuple[float, float] | None = None
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Phases of a training step, and its operations.

    Attributes:
        framework: Framework whose profiler has seen the operations; None without any.
        batch_size: Samples in a batch; None if that is not known.
        steps: Steps that the phases were taken from.
        step: The whole step.
        gpu_utilization: Share of the training's time in which a GPU was busy; None if not known.
        operations: Those that take longest, in order of their time.
        profiled_steps: Steps that the operations were taken from.
        why_not: Reason that operations or phases are missing; None where none are.
    """

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
        """What takes most of the step, and what that is about, as a sentence; steps of uneven length are told, too."""
        known = [(phase.mean_ms, phase.name) for phase in self.phases if phase.mean_ms is not None]
        step_ms, (most_ms, most) = self.step.mean_ms, max(known, default=(0.0, ""))
        if not step_ms or len(known) < 2:
            return "What takes most of the step is not known: its parts were not measured."
        about = {
            "data": "waiting for data is the limit, and `autotune profile pipeline` says what of it",
            "the rest": "Python and callbacks between the parts are the limit, not arithmetic",
            ALL_BUT_DATA: "the step itself is the limit, not its data",
            DATA_AND_FORWARD: "its batches come from no DataLoader, and cannot be told from what is computed",
        }
        arithmetic = "the arithmetic of the step is the limit, not its data"
        said = (
            f"{most[0].upper()}{most[1:]} takes {percent(most_ms / step_ms)} of the step: {about.get(most, arithmetic)}"
        )
        if self.step.tail_ms and self.step.median_ms and self.step.tail_ms[1] > 2.0 * self.step.median_ms:
            times = f"{self.step.tail_ms[1] / self.step.median_ms:.1f}"
            said = f"{said}; one step in a hundred takes {times} times the usual"
        return f"{said}."


ALL_BUT_DATA = "all but data"
"""Phase of a step that is not divided further."""

DATA_AND_FORWARD = "data and forward"
"""Phase of a step of which the begin of the forward pass is not seen."""


def step_profile(seen: SeenSteps, training: Training) -> StepProfile:
    """Return the profile that the steps make.

    Args:
        seen: What was seen inside the trainer.
        training: Steps that the trial reported; not needed where there are phases.
    """
    steps_ms: Sequence[float]
    if seen.phases_ms:
        steps_ms = [sum(step) for step in zip(*seen.phases_ms.values(), strict=True)]
        names = {"rest": "the rest"} if "data" in seen.phases_ms else {"forward": DATA_AND_FORWARD}
        phases = [_phase(names.get(name, name), values_ms) for name, values_ms in seen.phases_ms.items()]
    else:
        steps_ms, waits_ms = training.steps_ms, training.waits_ms
        phases = [_phase("data", waits_ms, "the trainer does not show for how long it waits for data")]
        phases += _all_but(phases[0], _phase("step", steps_ms))
    why_not: str = seen.why_not
    if not why_not and not seen.operations:
        unseen = "its profiler has seen no operation" if seen.framework else "neither PyTorch nor TensorFlow trains"
        why_not = f"operations are not known: {unseen}"
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


def _all_but(data: Phase, step: Phase) -> list[Phase]:
    """Return what data leaves of the step; not step by step, because waits may be means over several."""
    if data.mean_ms is None or data.median_ms is None or step.mean_ms is None or step.median_ms is None:
        return []
    mean_ms, median_ms = step.mean_ms - data.mean_ms, step.median_ms - data.median_ms
    return [Phase(name=ALL_BUT_DATA, mean_ms=mean_ms, median_ms=median_ms, quartiles_ms=None)]


def _phase(name: str, values_ms: Sequence[float] | None, why_not: str | None = None) -> Phase:
    if values_ms is None:
        return Phase(name=name, mean_ms=None, median_ms=None, quartiles_ms=None, why_not=why_not)
    shortest_ms, low_ms, median_ms, high_ms, longest_ms, *tail_ms = np.quantile(
        values_ms, (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    ).tolist()
    return Phase(
        name=name,
        # of the times at either end: something else on the machine makes a few of them several times as long
        mean_ms=float(np.clip(values_ms, shortest_ms, longest_ms).mean()),
        median_ms=median_ms,
        quartiles_ms=(low_ms, high_ms),
        tail_ms=(tail_ms[0], tail_ms[1]),
    )


# File of the profile inside the trainer: whatever is in it may be a trainer's.


_Phase = Literal["data", "forward", "backward", "optimizer", "rest"]
_Ms = Annotated[float, Meta(ge=0.0, le=1e8)]


class Line(str):
    """Text of one line without control characters."""

    __slots__ = ()


FILE = "step_profile.json"
VERSION: Literal[1] = 1
_EMPTY = Line()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Operation of a step: how often it is executed, and its own time on the host and on a GPU, all on average."""

    name: Line
    times: Annotated[float, Meta(ge=0.0, le=1e9)]
    host_ms: _Ms
    device_ms: _Ms


@dataclass(frozen=True, kw_only=True)
class SeenSteps:
    """Steps as they were seen inside the trainer.

    Attributes:
        framework: Framework that makes them; None if it is neither of these.
        profiler_begin_s: Time at which its profiler was started, on the monotonic clock.
        steps: Steps while it was on.
        phases_ms: Time of each phase in each step before that; of each as many.
        operations: Operations while it was on, those that take longest.
        why_not: Reason that phases or operations are missing.
    """

    v: Literal[1] = VERSION
    framework: Literal["PyTorch", "TensorFlow"] | None = None
    profiler_begin_s: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    steps: Annotated[int, Meta(ge=1, le=10**6)] = 1
    phases_ms: Mapping[_Phase, Annotated[tuple[_Ms, ...], Meta(min_length=1, max_length=1000)]] = field(
        default_factory=dict
    )
    operations: Annotated[tuple[Operation, ...], Meta(max_length=50)] = ()
    why_not: Line = _EMPTY


def read_seen_steps(path: Path) -> SeenSteps | None:
    """Return the steps in a file; None if there is no file.

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
    seen = msgspec.json.decode(data, type=SeenSteps, dec_hook=_line)
    if seen.framework is None or len({len(values) for values in seen.phases_ms.values()}) > 1:
        raise ValueError("steps of no framework, or phases of different numbers of steps")
    return seen


def _line(_kind: type, value: Any) -> Line:
    if not isinstance(value, str):
        raise ValueError("no text in its place")
    return Line("".join(letter for letter in " ".join(value.split()) if letter.isprintable())[:300])
