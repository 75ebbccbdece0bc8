"""Profile of the step of an unchanged trainer, made in its process while it trains.

The parts of the step are timed in several blocks of rounds with steps of the training between them: so both are timed
while the machine is as it is. The result is ``step_phases.json`` in the trial's folder, one object:

    {"v": 1, "of": "…", "compiled": "graph", "device": "CPU", "batch_size": 8, "held": [[81.2, 83.1], …],
     "draws": true, "times_ms": {"forward": […], "loss": […], "gradients": […], "update": […]},
     "why_not": {"copy": "…"}}

or ``{"v": 1, "error": "…"}``; in place of ``times_ms``, a profile by marks (step_profile_torch.py) has ``marked_ms``,
the phases of each step with marks, and ``plain_ms``, the times of steps without. ``places`` says which tensors and
operations are on which device, where there is a GPU: ``[{"what": "buffers", "device": "cpu", "count": 1, "names":
["mask"]}, …]``. ``slowest`` are the operations that took longest where one step was made one by one: ``[{"what":
"Conv2D", "place": "/home/me/train.py:41 loss", "count": 2, "ms": 12.1}, …]``. ``held`` are the times (CLOCK_MONOTONIC)
for which the trainer was held; ``draws`` says whether batches were drawn from its loader meanwhile, which else has had
time to work ahead.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, Optional

from autotune.trainee import observe
from autotune.trainee.costs import place_of
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, mark

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that asks for a profile, in a trial of its own."""

NO_PROFILE = "no profile of the step: "
"""Begin of the notes that say why."""

BEGINS = "the parts of the step will be timed"
"""Note at the first step that is counted."""

FILE = "step_phases.json"
FORMAT_VERSION = 1

STEPS_ONE_BY_ONE = 8
"""Steps whose operations are timed one by one."""

_PROFILED = {
    "keras": "step_profile_tensorflow.profile_keras",
    "autotune.tf.step": "step_profile_tensorflow.profile_train_step",
    "torch": "step_profile_torch.profile_torch",
}
"""Module → what profiles the steps that it makes."""


def install() -> None:
    """Install the profiler in a trial that is made for it; in any other process nothing happens."""
    folder = os.environ.get(TRIAL_DIR_VARIABLE) if os.environ.get(VARIABLE) else None
    if folder is None:
        return
    instrumentation = Instrumentation(refuse)
    profiler = StepProfiler(folder)

    def profile(framework: str) -> None:
        instrumentation.attempt(framework, lambda: observe.part(_PROFILED[framework])(profiler, instrumentation))

    observe.Hook(dict.fromkeys(_PROFILED, profile)).install()


def refuse(why: str) -> None:
    """Say that there will be no profile."""
    mark("note", text=f"{NO_PROFILE}{why}")


class StepProfiler:
    """Profiler of the steps of this process.

    Attributes:
        is_over: True once there is a result.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._steps = 0  # since the last block
        self._since_s = 0.0
        self._held: list[tuple[float, float]] = []
        self._timing: Optional[Timing] = None
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
            # Before the first block the step has to be traced, compiled and steady; and there may be few long steps.
            steps, least_s = (8, 0.75) if self._held else (20, 4.0)
            due = (self._steps > steps and passed_s > least_s) or (self._steps > 4 and passed_s > 30.0)
            if due:
                self._steps, self._since_s = 0, 0.0
            return due

    def make(self, parts_of: Callable[[], StepParts]) -> None:
        """Make a block, which the observer does not take for steps, and after the last one write the result.

        Nothing is raised.

        Args:
            parts_of: Makes the parts, before the first block.
        """
        begin_s = time.monotonic()
        try:
            _observe(False)
            if self._timing is None:
                self._timing = Timing(parts_of())
            self._timing.block(rounds=5, fewest=1, limit_s=1.5)
            self._held.append((begin_s, time.monotonic()))
            if len(self._held) == 12:
                self.is_over = True
                write_result(self.folder, {**self._timing.result(), "held": self._held})
        except Exception as error:
            self.is_over = True
            try_to_write_error(self.folder, f"{type(error).__name__}: {error}")
        finally:
            _observe(True)


def _observe(on: bool) -> None:
    for instrumentation in observe.installed:
        instrumentation.on = on


@dataclass
class StepParts:
    """Functions that do more and more of a training step, and the batches to time them with.

    Attributes:
        compiled: Way in which it is executed: eager, traced into a graph, compiled by XLA.
        batch_size: Samples in a batch; None if that is not known.
        functions: Functions of a batch on that device, in the order in which each does one part more: ``forward``,
            ``loss``, ``gradients``, ``update``, ``metrics``; those that there are, or ``whole`` where none can be told
            apart. They may return at once, and `wait` returns when their work is done.
        warm_up_on: Those of the batches on which the functions are traced and compiled for all.
        why_not: Function that there is not → the reason.
        copy: Copies a batch from the host to the device; None where none is copied in the step.
        on_host: The batches as the step is given them.
        restore: Puts back what the functions have changed.
        places: Returns what is on which device, where there is a GPU, with a step of its own.
        operations: Adds the operations of a step of its own, which is made one by one.
        draw: Draws a batch from the trainer's loader, which then loads the next one; None where it is not known.
    """

    of: str
    compiled: str
    device: str
    batch_size: Optional[int]
    functions: Mapping[str, Callable[[Any], object]]
    batches: Sequence[Any]
    warm_up_on: Sequence[Any]
    why_not: Mapping[str, str]
    wait: Callable[[], object]
    copy: Optional[Callable[[Any], object]]
    on_host: Sequence[Any]
    restore: Callable[[], object]
    places: Callable[[], list[dict[str, Any]]]
    operations: Callable[[Operations], object]
    draw: Optional[Callable[[], object]] = None


class Timing:
    """Times of the parts of a step, block by block.

    Args:
        parts: The parts; they are called until they are traced and compiled.
    """

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._times_ms: dict[str, list[float]] = {}
        self._draws = parts.draw is not None
        self._why_not = dict(parts.why_not)
        self._functions: dict[str, Callable[[Any], object]] = {}
        self._places: list[dict[str, Any]] = []
        self._operations = Operations()
        try:
            for name, function in parts.functions.items():
                self._warm_up(name, function, parts.warm_up_on)
            if parts.copy is not None:
                self._warm_up("copy", parts.copy, parts.on_host[:1])
            with contextlib.suppress(Exception):  # a version of the framework that does not show its graphs
                self._places = parts.places()
            with contextlib.suppress(Exception):  # a step that cannot be made so
                parts.operations(self._operations)
        finally:
            parts.restore()

    def _warm_up(self, name: str, function: Callable[[Any], object], batches: Sequence[Any]) -> None:
        """Call a function until it is traced and compiled."""
        try:
            for batch in batches:
                for _ in range(2):
                    function(batch)
                    self._parts.wait()
            self._functions[name] = function
        except Exception as error:
            self._why_not[name] = f"{type(error).__name__}: {error}"

    def block(self, *, rounds: int, fewest: int, limit_s: float) -> None:
        """Time all parts in turn, so that what disturbs the machine for a while disturbs all of them.

        All parts of a round get the same batch, the next round the next. Before each call, and outside its time, a
        batch is drawn from the trainer's loader: so that is at work as it is in training. It is left alone once it has
        taken up the time limit, or has failed. In the end, what the parts have changed is put back.

        Args:
            rounds: How often each is timed.
            limit_s: Time after which there are no more rounds than the fewest.
        """
        parts, names, draw = self._parts, list(self._functions), self._parts.draw
        began_s, drawn_s = time.perf_counter(), 0.0
        try:
            for number in range(rounds if names else 0):
                if number >= fewest and time.perf_counter() - began_s > limit_s:
                    break
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    begin_s = time.perf_counter()
                    if draw is not None and drawn_s < limit_s:
                        try:
                            draw()
                        except Exception:
                            draw = None
                    batches = parts.on_host if name == "copy" else parts.batches
                    called_s = time.perf_counter()
                    self._functions[name](batches[number % len(batches)])
                    parts.wait()
                    self._times_ms.setdefault(name, []).append(1000 * (time.perf_counter() - called_s))
                    drawn_s += called_s - begin_s
        finally:
            parts.restore()
        # Each block begins with another batch.
        parts.batches = [*parts.batches[rounds % len(parts.batches) :], *parts.batches[: rounds % len(parts.batches)]]

    def result(self) -> dict[str, Any]:
        """Return what the file holds, without the times of the trial."""
        parts = self._parts
        return {
            **{name: getattr(parts, name) for name in ("of", "compiled", "device", "batch_size")},
            "draws": self._draws,
            "times_ms": {name: [round(value, 3) for value in values] for name, values in self._times_ms.items()},
            "why_not": {name: why[:300] for name, why in self._why_not.items()},
            "places": self._places,
            "slowest": self._operations.rows(STEPS_ONE_BY_ONE),
        }


class Operations:
    """Operations of steps that are made one by one, with the times of each."""

    def __init__(self) -> None:
        self._times_s: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, took_s: float) -> None:
        """Add one that has just ended; its place is the line of the trainer's own that has led to it."""
        self._times_s.setdefault((name, place_of(None)), []).append(took_s)

    def rows(self, steps: int) -> list[dict[str, Any]]:
        """Return those that take longest in a step, by the medians of their times.

        Args:
            steps: How many steps they are of.
        """
        found = [
            {
                "what": name,
                "place": place,
                "count": max(1, len(times_s) // steps),
                "ms": round(1000 * median(times_s) * len(times_s) / steps, 4),
            }
            for (name, place), times_s in self._times_s.items()
        ]
        return sorted(found, key=lambda row: -float(str(row["ms"])))[:8]


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
