"""Profile of the step of an unchanged trainer, made in its process while it trains.

The parts of the step are timed in several blocks of rounds with steps of the training between them: so both are timed
while the machine is as it is. The result is ``step_phases.json`` in the trial's folder, one object:

    {"v": 1, "of": "…", "compiled": "graph", "device": "CPU", "batch_size": 8, "held": [[81.2, 83.1], …],
     "draws": true, "times_ms": {"forward": […], "loss": […], "gradients": […], "update": […]},
     "why_not": {"copy": "…"}}

or ``{"v": 1, "error": "…"}``; in place of ``times_ms``, a profile by marks (`step_phases_torch`) has ``marked_ms``, the
phases of each step with marks, and ``plain_ms``, the times of steps without. ``places`` says which tensors and
operations are on which device, where there is a GPU: ``[{"what": "buffers", "device": "cpu", "count": 1, "names":
["mask"]}, …]``. ``held`` are the times (CLOCK_MONOTONIC) for which the trainer was held; ``draws`` says
whether batches were drawn from its loader meanwhile, which else has had time to work ahead.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

from autotune.trainee.stream import TRIAL_DIR_VARIABLE, mark

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that asks for a profile, in a trial of its own."""

BEGINS = "the parts of the step will be timed"
"""Note at the first step that is counted."""

FILE = "step_phases.json"
FORMAT_VERSION = 1
_BLOCKS = 12
_ROUNDS, _FEWEST_ROUNDS = 5, 1  # of a block
_LIMIT_S = 1.5  # of a block, from the fewest rounds on
_LEAST_STEPS, _LEAST_S = 20, 4.0  # of training before the first block: it has to be traced, compiled and steady
_STEPS_BETWEEN, _BETWEEN_S = 8, 0.75
_FEW_STEPS, _LONG_S = 4, 30.0  # of either, where steps are long


class StepProfiler:
    """Profiler of the steps of this process.

    Args:
        hold: Called with False before a block is made, which nobody is to observe, and with True after it.

    Attributes:
        is_over: True once there is a result.
    """

    def __init__(self, folder: str, hold: Callable[[bool], object] = lambda _on: None) -> None:
        self.folder = folder
        self._hold = hold
        self._lock = threading.Lock()
        self._steps = 0  # since the last block
        self._since_s = 0.0
        self._held: list[tuple[float, float]] = []
        self._timing: Timing | None = None
        self.is_over = False

    def is_due(self) -> bool:
        """Count a step that is about to begin; return whether a block is to be made now."""
        now_s = time.monotonic()
        with self._lock:
            if self.is_over:
                return False
            if not self._since_s and not self._held:
                mark("note", text=BEGINS)
            self._since_s = self._since_s or now_s
            self._steps += 1
            passed_s = now_s - self._since_s
            steps, least_s = (_STEPS_BETWEEN, _BETWEEN_S) if self._held else (_LEAST_STEPS, _LEAST_S)
            due = (self._steps > steps and passed_s > least_s) or (self._steps > _FEW_STEPS and passed_s > _LONG_S)
            if due:
                self._steps, self._since_s = 0, 0.0
            return due

    def make(self, parts_of: Callable[[], StepParts]) -> None:
        """Make a block, and after the last one write the result; nothing is raised.

        Args:
            parts_of: Makes the parts, before the first block.
        """
        begin_s = time.monotonic()
        try:
            self._hold(False)
            if self._timing is None:
                self._timing = Timing(parts_of())
            self._timing.block(rounds=_ROUNDS, fewest=_FEWEST_ROUNDS, limit_s=_LIMIT_S)
            self._held.append((begin_s, time.monotonic()))
            if len(self._held) == _BLOCKS:
                self.is_over = True
                write_result(self.folder, {**self._timing.result(), "held": self._held})
        except Exception as error:
            self.is_over = True
            try_to_write_error(self.folder, f"{type(error).__name__}: {error}")
        finally:
            self._hold(True)


class Timing:
    """Times of the parts of a step, block by block.

    Args:
        parts: The parts; they are called until they are traced and compiled.
    """

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._times_ms: dict[str, list[float]] = {}
        self._draws = parts.draw is not None

        def waited(function: Callable[[Any], object], batch: Any) -> None:
            function(batch)
            parts.wait()

        functions: dict[str, Callable[[Any], object]]
        functions = {name: partial(waited, function) for name, function in parts.functions.items()}
        copies: dict[str, Callable[[Any], object]]
        copies = {} if parts.copy is None else {"copy": partial(waited, parts.copy)}
        try:
            self._functions, errors = warmed_up(functions, parts.warm_up_on, calls=2)
            self._copies, more_errors = warmed_up(copies, parts.on_host[:1], calls=2)
            self._places = _places_of(parts)
        finally:
            parts.restore()
        self._why_not = {**parts.why_not, **errors, **more_errors}

    def block(self, *, rounds: int, fewest: int, limit_s: float) -> None:
        """Time all parts in turn, see `time_in_turn`; then put back what they have changed."""
        parts = self._parts
        try:
            times_ms = time_in_turn(
                self._functions, parts.batches, rounds=rounds, fewest=fewest, limit_s=limit_s, draw=parts.draw
            )
            times_ms.update(time_in_turn(self._copies, parts.on_host, rounds=rounds, fewest=fewest, limit_s=limit_s))
        finally:
            parts.restore()
        for name, values in times_ms.items():
            self._times_ms.setdefault(name, []).extend(values)
        # Each block begins with another batch.
        parts.batches = [*parts.batches[rounds % len(parts.batches) :], *parts.batches[: rounds % len(parts.batches)]]

    def result(self) -> dict[str, Any]:
        """Return what the file holds, without the times of the trial."""
        parts = self._parts
        return {
            "of": parts.of,
            "compiled": parts.compiled,
            "device": parts.device,
            "batch_size": parts.batch_size,
            "draws": self._draws,
            "times_ms": {name: [round(value, 3) for value in values] for name, values in self._times_ms.items()},
            "why_not": {name: why[:300] for name, why in self._why_not.items()},
            "places": self._places,
        }


def _places_of(parts: StepParts) -> list[dict[str, Any]]:
    try:
        return parts.places()
    except Exception:  # a version of the framework that does not show its graphs
        return []


def write_result(folder: str, result: Mapping[str, Any]) -> None:
    """Write a result, whole, unless there is one: of several processes the first one's counts."""
    path = os.path.join(folder, FILE)
    part = f"{path}.{os.getpid()}"
    with open(part, "x", encoding="utf-8") as file:
        json.dump({"v": FORMAT_VERSION, **result}, file, separators=(",", ":"))
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(part)


def try_to_write_error(folder: str, why: str) -> None:
    """Write that there are no times; nothing is raised."""
    with contextlib.suppress(Exception):
        write_result(folder, {"error": why[:500]})


def wanted_folder() -> str | None:
    """Return the folder of the trial that is to profile its step; None in any other process."""
    return os.environ.get(TRIAL_DIR_VARIABLE) if os.environ.get(VARIABLE) else None


# Times of a training step's parts, from functions that each do one part more than the one before.


def time_in_turn(
    functions: Mapping[str, Callable[[Any], object]],
    batches: Sequence[Any],
    *,
    rounds: int,
    fewest: int,
    limit_s: float,
    draw: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Time functions in turn, so that what disturbs the machine for a while disturbs all of them.

    Args:
        functions: The functions of a batch, which have been called before; each returns once its work is done, also
            that on an accelerator.
        batches: The batches; all functions of a round get the same one, the next round the next.
        limit_s: Time after which there are no more rounds than these.
        draw: Draws a batch from the trainer's loader, before each call and outside its time: so the loader is at work
            as it is in training. It is left out once it has taken up the time limit, or has failed.

    Returns:
        Milliseconds of each function, in the order of the rounds.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    began_s, drawn_s = time.perf_counter(), 0.0
    for number in range(rounds if names else 0):
        if number >= fewest and time.perf_counter() - began_s > limit_s:
            break
        batch = batches[number % len(batches)]
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin_s = time.perf_counter()
            if draw is not None and drawn_s < limit_s:
                try:
                    draw()
                except Exception:
                    draw = None
            called_s = time.perf_counter()
            functions[name](batch)
            times_ms[name].append(1000 * (time.perf_counter() - called_s))
            drawn_s += called_s - begin_s
    return times_ms


def warmed_up(
    functions: Mapping[str, Callable[[Any], object]], batches: Sequence[Any], *, calls: int
) -> tuple[dict[str, Callable[[Any], object]], dict[str, str]]:
    """Call functions until they are traced and compiled.

    Args:
        batches: Batches of all shapes that they will be called with.

    Returns:
        The functions that can be called, and the errors of the others.
    """
    usable: dict[str, Callable[[Any], object]] = {}
    errors: dict[str, str] = {}
    for name, function in functions.items():
        try:
            for batch in batches:
                for _ in range(calls):
                    function(batch)
            usable[name] = function
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return usable, errors


# No dataclass: those with keywords only need Python 3.10.


class StepParts:
    """Functions that do more and more of a training step, and the batches to time them with.

    Args:
        compiled: Way in which it is executed: eager, traced into a graph, compiled by XLA.
        batch_size: Samples in a batch; None if that is not known.
        functions: Functions of a batch on that device, in the order in which each does one part more: ``forward``,
            ``loss``, ``gradients``, ``update``, ``metrics``; those that there are, or ``whole`` where none can be told
            apart. They may return at once, and `wait` returns when their work is done.
        warm_up_on: Those of them on which the functions are traced and compiled for all.
        copy: Copies a batch from the host to the device; None where none is copied in the step.
        draw: Draws a batch from the trainer's loader, which then loads the next one; None where it is not known.
        restore: Puts back what the functions have changed.
        places: Returns what is on which device, where there is a GPU, with a step of its own.
    """

    def __init__(
        self,
        *,
        of: str,
        compiled: str,
        device: str,
        batch_size: int | None,
        functions: Mapping[str, Callable[[Any], object]],
        batches: Sequence[Any],
        warm_up_on: Sequence[Any],
        why_not: Mapping[str, str],
        wait: Callable[[], object],
        copy: Callable[[Any], object] | None = None,
        on_host: Sequence[Any] = (),
        draw: Callable[[], object] | None = None,
        restore: Callable[[], object] = lambda: None,
        places: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self.of = of
        self.compiled = compiled
        self.device = device
        self.batch_size = batch_size
        self.functions = functions
        self.batches = batches
        self.warm_up_on = warm_up_on
        self.why_not = why_not
        self.wait = wait
        self.copy = copy
        self.on_host = on_host
        self.draw = draw
        self.restore = restore
        self.places = places
