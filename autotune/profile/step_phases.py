"""Phases of a training step, from the times of functions that each do one part more than the one before."""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import TrialError
from autotune.process.short_command import run_short

BATCH_SIZE = 8
ROUNDS = 25
_PROGRAM = "autotune.workloads.tts.step_profile"
_MARKER = "autotune-step-profile "
_LIMIT_S = 300.0
_DIFFERENCES = {
    "data": ("data", None),
    "copy to device": ("copy", None),
    "forward": ("forward", None),
    "loss": ("loss", "forward"),
    "backward": ("gradients", "loss"),
    "optimizer": ("update", "gradients"),
}
"""Phase → the function that ends with it, and the function that ends before it."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a training step.

    Attributes:
        name: Its name.
        median_ms: Median over the rounds; None where it was not measured. Below 0 it is lost in the noise.
        quartiles_ms: First and third quartile over the rounds; None likewise.
        why_not: Reason that it was not measured; None where it was.
    """

    name: str
    median_ms: float | None
    quartiles_ms: tuple[float, float] | None
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Phases of a training step, and the whole step timed by itself.

    Attributes:
        of: Whose step.
        device: Where it ran.
        batch_size: Samples in a batch.
        rounds: How often each part was timed.
        phases: The phases, the rest last.
        step: The whole step, timed by itself.
        adds_up: Sum of the phases without the rest, as a part of the step.
    """

    of: str
    device: str
    batch_size: int
    rounds: int
    phases: tuple[Phase, ...]
    step: Phase
    adds_up: float


def profile_shipped_step(python: str = sys.executable) -> StepProfile:
    """Time the step of the shipped text-to-speech model on random batches, in a process of its own.

    Args:
        python: Interpreter that has TensorFlow.

    Raises:
        TrialError: That process failed, or took too long.
    """
    argv = [python, "-m", _PROGRAM, str(BATCH_SIZE), str(ROUNDS)]
    ended = run_short(argv, _LIMIT_S, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    line = next((line for line in reversed(ended.text.splitlines()) if line.startswith(_MARKER)), None)
    if ended.status != 0 or line is None:
        last = ended.text.splitlines()[-1] if ended.text else "it printed nothing"
        raise TrialError(
            f"the step was not measured: {last}",
            where=" ".join(argv),
            remedy="It needs an interpreter with TensorFlow: pip install 'autotune[tensorflow]'.",
        )
    found = json.loads(line.removeprefix(_MARKER))
    return step_profile("the shipped text-to-speech model, random batches", found)


def step_profile(of: str, found: Mapping[str, Any]) -> StepProfile:
    """Return the profile that the times of the functions make.

    Args:
        of: Whose step.
        found: What the timing process printed: ``device``, ``batch_size``, and ``times_ms`` by function.
    """
    times_ms: Mapping[str, Sequence[float]] = found["times_ms"]
    phases = [_phase(name, times_ms, *ends) for name, ends in _DIFFERENCES.items()]
    step = _spread("step", times_ms["step"])
    total_ms = sum(phase.median_ms for phase in phases if phase.median_ms is not None)
    step_ms = statistics.median(times_ms["step"])
    rest = Phase(name="the rest", median_ms=step_ms - total_ms, quartiles_ms=None)
    return StepProfile(
        of=of,
        device=str(found["device"]),
        batch_size=int(found["batch_size"]),
        rounds=len(times_ms["step"]),
        phases=(*phases, rest),
        step=step,
        adds_up=total_ms / step_ms,
    )


def _phase(name: str, times_ms: Mapping[str, Sequence[float]], end: str, before: str | None) -> Phase:
    if end not in times_ms:
        why = "there is no GPU" if end == "copy" else f"{end} could not be told apart"
        return Phase(name=name, median_ms=None, quartiles_ms=None, why_not=why)
    if before is None:
        return _spread(name, times_ms[end])
    return _spread(name, [late - early for late, early in zip(times_ms[end], times_ms[before], strict=True)])


def _spread(name: str, values_ms: Sequence[float]) -> Phase:
    low_ms, median_ms, high_ms = statistics.quantiles(values_ms, n=4, method="inclusive")
    return Phase(name=name, median_ms=median_ms, quartiles_ms=(low_ms, high_ms))
