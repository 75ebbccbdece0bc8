"""Profile of an unchanged trainer's steps, made in its process, in a separate trial.

Hooks divide PyTorch's steps into phases. Then PyTorch's or TensorFlow's profiler observes a few steps. The result is
``step_profile.json`` in the trial's folder:

    {"v": 1, "framework": "PyTorch", "profiler_begin_s": 102.3, "steps": 9,
     "phases_ms": {"data": […], "forward": […], "backward": […], "optimizer": […], "rest": […]}, "traced_ms": {},
     "operations": [{"name": "aten::mm", "times": 6.0, "host_ms": 3.9, "device_ms": 0.0}, …], "why_not": ""}

``phases_ms`` are each step's times before the profiler starts, ``operations`` means over the ``steps`` until it stops,
``traced_ms`` (TensorFlow) the times of phases and steps in the profiler's trace, ``why_not`` the reason for a missing
part.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import sys
import threading
import time
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Optional

from autotune.trainee.observe import Observer
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, Report, Step, mark
from autotune.trainee.trace_phases import Executed, phases_of

VARIABLE = "AUTOTUNE_PROFILE_STEP"
"""Environment variable that requests a profile."""

BEGINS = "the step will be profiled"
"""Note at the first step."""

FILE = "step_profile.json"
FORMAT_VERSION = 1

_MOST_STEPS = 600  # whose phases are kept
_MOST_OPERATIONS = 50

Operations = dict[str, list[float]]
"""Operation → executions, ms on the host, ms on a device."""


class StepProfiler(Observer):
    """Profile of one framework's steps; errors go into the result, or are notes."""

    framework = ""
    least: tuple[tuple[int, float], ...] = (20, 4.0), (20, 6.0), (4, 0.2)
    """Steps and seconds of the warm-up, of the steps before the profiler starts, and until it stops."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._stage, self._steps, self._since_s = 0, 0, 0.0
        self._profiler_begin_s = 0.0
        self._why_not = ""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> Operations:
        raise NotImplementedError

    def phases_ms(self) -> dict[str, list[float]]:
        """Return the phases' times in each step; empty if not seen."""
        return {}

    def traced_ms(self, steps: int) -> dict[str, list[float]]:
        return {}

    @property
    def is_warm(self) -> bool:
        """True between warm-up and profiler."""
        return self._stage == 1

    @property
    def is_over(self) -> bool:
        return self._stage == len(self.least)

    def passed(self, steps: int) -> None:
        if self.is_over:
            return
        now_s = time.monotonic()
        if not self._since_s:
            self._since_s = now_s
            mark("note", text=BEGINS)
        self._steps += steps
        passed_s = now_s - self._since_s
        least, least_s = self.least[self._stage]
        is_due = self._steps >= least and passed_s >= least_s
        is_long = (self._steps >= 4 and passed_s >= 30.0) or (self.is_warm and self._steps >= _MOST_STEPS)
        if is_due or is_long:
            steps, self._steps, self._since_s, self._stage = self._steps, 0, now_s, self._stage + 1
            if self._stage == 2:
                self._profiler_begin_s = now_s
                self._attempt(self.start)
            elif self.is_over:
                self._write(steps)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self._why_not = f"{type(error).__name__}: {error}"[:300]
            return None

    def _write(self, steps: int) -> None:
        """Write the whole result, unless another process has."""
        # If ours could not be started, the running profiler may be the trainer's.
        operations: Operations = {} if self._why_not else self._attempt(self.stop) or {}
        phases_ms: dict[str, list[float]] = self._attempt(self.phases_ms) or {}
        traced_ms: dict[str, list[float]] = self._attempt(lambda: self.traced_ms(steps)) or {}
        rows = sorted(operations.items(), key=lambda row: -max(row[1][1:]))[:_MOST_OPERATIONS]
        result = {
            "v": FORMAT_VERSION,
            "framework": self.framework,
            "profiler_begin_s": self._profiler_begin_s,
            "steps": steps,
            "phases_ms": {name: [round(one, 4) for one in values] for name, values in phases_ms.items()},
            "traced_ms": {name: [round(one, 4) for one in values] for name, values in traced_ms.items()},
            "operations": [
                {"name": name, "times": times / steps, "host_ms": host_ms / steps, "device_ms": device_ms / steps}
                for name, (times, host_ms, device_ms) in rows
            ],
            "why_not": self._why_not,
        }
        path = os.path.join(os.environ[TRIAL_DIR_VARIABLE], FILE)
        part = f"{path}.{os.getpid()}"
        with open(part, "x", encoding="utf-8") as file:
            json.dump(result, file, separators=(",", ":"))
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        os.unlink(part)


DATA, FORWARD, BACKWARD, OPTIMIZER, REST = PHASES = "data", "forward", "backward", "optimizer", "rest"
"""Phases of a PyTorch step, to the end of a fetch, start and end of a backward pass, end of an update, next fetch."""

_Moments = list[tuple[str, Any]]
"""Moments of a step (numbers, or GPU events), each with the phase that ends there."""


class TorchProfile(StepProfiler):
    """Profile of PyTorch; a step lasts from an update to the same optimizer's next one."""

    framework = "PyTorch"
    _training: Optional[int] = None
    """Thread that trains with PyTorch in this process."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._optimizer: Callable[[], Any] = lambda: None  # weak reference to the one whose updates are step boundaries
        self._others = 0  # updates by others since its last one
        self._device: Any = None  # a GPU with its parameters
        self._is_backward = False  # passes may be nested
        self._step: _Moments = []
        self._kept: list[_Moments] = []
        self._profiler: Any = None

    def install(self) -> None:
        fetch = "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__"
        self.around(fetch, lambda _args, _kwargs: self._moment(REST), lambda *_: self._moment(DATA))
        for name in ("backward", "grad"):
            self.around(f"torch:autograd.{name}", self._backward_begins, self._backward_ends)
        self.after_updates(self.instrumentation.guarded(self._updated))

    def _updated(self, optimizer: Any, *_arguments: Any) -> None:
        if TorchProfile._training is None:
            TorchProfile._training = threading.get_ident()
            os.register_at_fork(after_in_child=self._forget)
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            self._device = next((one.device for one in parameters if one.device.type == "cuda"), None)
        if threading.get_ident() != TorchProfile._training:
            return
        if self._optimizer() is None or self._others > 20:  # it belonged to an earlier part of the training
            self._optimizer = weakref.ref(optimizer)
        is_border = optimizer is self._optimizer()
        self._others = 0 if is_border else self._others + 1
        if is_border:
            self.passed(1)
        if self._moment(OPTIMIZER) and is_border and self.is_warm:
            if len(self._step) > 1:
                self._kept.append(self._step)
            self._step = self._step[-1:]

    def _forget(self) -> None:
        TorchProfile._training = 0

    def _moment(self, ends: str) -> bool:
        """Record a moment; return whether it is the training thread's, in an unfinished profile."""
        if self.is_over or threading.get_ident() != TorchProfile._training:
            return False
        if self.is_warm:
            self._step.append((ends, self._now()))
        return True

    def _now(self) -> Any:
        """Return the time; on a GPU, an event in its current stream."""
        if self._device is None:
            return time.perf_counter()
        cuda = sys.modules["torch"].cuda
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._device))
        return event

    def _backward_begins(self, _args: Any, _kwargs: Any) -> Optional[bool]:
        if self._is_backward or not self._moment(FORWARD):
            return None
        self._is_backward = True
        return True

    def _backward_ends(self, *_end: Any) -> None:
        self._is_backward = False
        self._moment(BACKWARD)

    def phases_ms(self) -> dict[str, list[float]]:
        if self._device is not None:
            sys.modules["torch"].cuda.synchronize(self._device)
        found: dict[str, list[float]] = {name: [] for name in PHASES}
        for step in self._kept:
            sums = dict.fromkeys(PHASES, 0.0)
            for (_, begin), (ends, end) in zip(step, step[1:]):  # noqa: B905, RUF007 -- Python 3.9 has neither
                sums[ends] += 1000.0 * (end - begin) if self._device is None else begin.elapsed_time(end)
            for name, ms in sums.items():
                found[name].append(ms)
        self._kept.clear()
        return {name: values for name, values in found.items() if any(values)}

    def start(self) -> None:
        if sys.modules["torch"].autograd._profiler_enabled():
            raise RuntimeError("the trainer has started PyTorch's profiler itself")
        self._profiler = import_module("torch.profiler").profile()
        self._profiler.start()

    def stop(self) -> Operations:
        self._profiler.stop()
        found: Operations = {}
        for row in self._profiler.key_averages():
            if row.device_type.name == "CPU":  # the operation; its row includes what it launched on a device
                # before PyTorch 2.4, named after one kind of device
                on_device = (
                    "self_device_time_total" if hasattr(row, "self_device_time_total") else "self_cuda_time_total"
                )
                found[row.key] = [row.count, row.self_cpu_time_total / 1000.0, getattr(row, on_device) / 1000.0]
        return found


_HOST_OPERATION = re.compile(r"(?:([^: ]+):|EagerLocalExecute: )(\w+)")  # name in the graph, if any, and kind
_HOLDING = re.compile(r"_?Xla.*|.*Call|If|While|Case|__inference_.*")  # their time is that of other operations


class TensorFlowProfile(StepProfiler):
    """Profile of TensorFlow; only its profiler sees compiled steps' phases."""

    framework = "TensorFlow"
    least = (20, 4.0), (20, 6.0), (20, 0.5)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._host: list[Executed] = []
        self._device: list[Executed] = []

    def install(self) -> None:
        observed = lambda args, _kwargs: len(args[0].held) or None if args[0].is_ours else None  # noqa: E731
        for owner, name, steps in ((Report, "flush", observed), (Step, "_report", lambda _args, _kwargs: 1)):
            self.instrumentation.around(owner, name, steps, lambda steps, *_end: self._ended(steps))

    def _ended(self, steps: int) -> None:
        if TorchProfile._training is None:
            self.passed(steps)

    @functools.cached_property
    def _folder(self) -> str:
        return os.path.join(os.environ[TRIAL_DIR_VARIABLE], f"profiler.{os.getpid()}")

    def start(self) -> None:
        profiler = sys.modules["tensorflow"].profiler.experimental
        profiler.start(self._folder, profiler.ProfilerOptions(host_tracer_level=3, python_tracer_level=0))

    def stop(self) -> Operations:
        try:
            sys.modules["tensorflow"].profiler.experimental.stop()
            space = import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace()
            for path in Path(self._folder).rglob("*.xplane.pb"):
                space.ParseFromString(path.read_bytes())
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        host: dict[str, list[float]] = {}
        device: dict[str, list[float]] = {}
        for plane in space.planes:
            on_device = plane.name.startswith("/device:")
            for line in plane.lines:
                # A device's lines are its streams, and sums over them; the host's are threads, some of them tf.data's.
                if line.name.startswith("Stream") if on_device else not line.name.startswith("tf_data"):
                    for event in line.events:
                        name, in_graph = _operation_name(plane, event, on_device)
                        if name is not None:
                            row = (device if on_device else host).setdefault(name, [0, 0.0])
                            row[0], row[1] = row[0] + 1, row[1] + event.duration_ps / 1e9
                        if name is not None and in_graph:
                            begin_ms, took_ms = line.timestamp_ns / 1e6 + event.offset_ps / 1e9, event.duration_ps / 1e9
                            one = Executed(in_graph, name, begin_ms, begin_ms + took_ms)
                            (self._device if on_device else self._host).append(one)
        return {
            name: [times, host.get(name, (0, 0.0))[1], device.get(name, (0, 0.0))[1]]
            for name, (times, _) in {**device, **host}.items()
        }

    def traced_ms(self, steps: int) -> dict[str, list[float]]:
        executed, self._host, self._device = self._device or self._host, [], []
        return phases_of(executed, steps)


def _operation_name(plane: Any, event: Any, on_device: bool) -> tuple[Optional[str], str]:
    """Return an operation's kind, and its name in the graph if any; None for other events."""
    name = plane.event_metadata[event.metadata_id].name
    for stat in event.stats:
        kind = plane.stat_metadata[stat.metadata_id].name
        if kind in ("hlo_op", "tf_op"):
            value = stat.str_value or plane.stat_metadata[stat.ref_value].name
            if kind == "hlo_op":
                return re.sub(r"[._\d]+$", "", value), ""
            name = value
    match = _HOST_OPERATION.fullmatch(name)
    if match is None:
        return name if on_device else None, ""
    return (None, "") if _HOLDING.fullmatch(match[2]) else (match[2], match[1] or "")
