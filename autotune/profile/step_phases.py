"""Phases of a training step, from the times of functions that each do one part more, or from marks on its steps."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.profile.step_times import PHASES, Place, StepTimes
from autotune.statistics import winsorize

_ORDER = ("forward", "loss", "gradients", "update", "metrics")
"""Functions in the order in which each does one part more."""

_DRAWN_IN = 0.1  # of the times at either end: something else on the machine makes a few of them several times as long

_PHASES = {
    "forward": "forward",
    "loss": "loss",
    "gradients": "backward",
    "update": "optimizer",
    "metrics": "metrics",
}
"""Function → the phase that it ends with."""

_REST = "rest"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a training step.

    Attributes:
        name: Its name.
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
        steps: Number of steps.
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
        of: Whose step.
        compiled: Way in which it is executed.
        device: Where it ran.
        batch_size: Samples in a batch; None if that is not known.
        rounds: How often each part was timed.
        steps: Steps of the training that the whole step was taken from; None where it was timed like its parts.
        phases: The phases, the rest last.
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
        phases = tuple(_marked(times, name) for name in PHASES if name != _REST)
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
    return float(winsorize(values_ms, _DRAWN_IN).mean())
