"""Instruments around a trial: the probe of the host, and the collector of a search's GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import autotune
from autotune.clock import Clock
from autotune.events import OnRemark, no_remark
from autotune.files import open_new
from autotune.measure.gpu import collector as gpu_process
from autotune.measure.gpu.driver import FATAL_NAMES, remedy_of
from autotune.measure.gpu.records import of_line
from autotune.measure.gpu.timeline import GpuTimeline, pooled_usage, usage_of_trial
from autotune.measure.host import HostProbe
from autotune.measure.probe import GpuProbe, GpuUsage, HostUsage, MemorySeries, Probe, TrialGpus
from autotune.measure.window import Window
from autotune.process import inherited_environment, with_python_path
from autotune.records import GpuRole, TraineeEvent, TrialExit
from autotune.trial.error_text import TRACEBACK, last_error, one_line
from autotune.trial.launch import Guard, GuardLost, Runner
from autotune.trial.node_gpus import NodeGpus

_MEMORY_READINGS = 24  # over a window, to see whether a GPU fills up
_FULL = 0.97  # of a GPU's memory: the rest is too small for any allocation
_DRIVER_DELAY_S = 1.0  # delay of the driver's windows, which are not waited for


class Instruments:
    """Probes of the host and its GPUs during one trial.

    Attributes:
        why_lost: From `GpuProbe.lost`.
    """

    def __init__(self, host: Probe, gpus: GpuProbe | None = None) -> None:
        self._host = host
        self._gpus = gpus
        self._trial_id = ""
        self._run = TrialGpus(uuids=())
        self._pids: set[int] = set()
        self._nodes: NodeGpus | None = None
        self.why_lost: str | None = None
        self._recent: Mapping[GpuRole, float] = {}
        self._recent_s = -math.inf

    @classmethod
    def of_machine(cls, clock: Clock, gpus: GpuProbe | None) -> Self:
        return cls(HostProbe(clock), gpus)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._host.close()
        if self._gpus:
            self._gpus.close()

    def expect(self, trial_id: str, trial: TrialGpus, kept: Path) -> None:
        """Prepare for a trial that is about to start, with a file for the raw GPU readings."""
        self._trial_id = trial_id
        self._run = trial
        self._nodes = NodeGpus(kept.parent)
        if self._gpus:
            self._gpus.open(kept)

    def watch(self, events: Sequence[TraineeEvent]) -> None:
        """Take the trial's new events; the first one starts the host probe."""
        if events and not self._pids:
            self._host.open(self._trial_id, events[0].pid)
        self._pids.update(event.pid for event in events)
        if self._nodes:
            self._nodes.watch(events)
        if reported := [name for event in events if event.offset_s is None for name in event.devices]:
            known = self._run.uuids if self._run.reported else ()
            self._run = replace(self._run, uuids=tuple(dict.fromkeys((*known, *reported))), reported=True)
        if self._gpus:
            self.why_lost = self._gpus.lost(self._run)

    def recent_utilization(self, now_s: float, *, started_s: float) -> Mapping[GpuRole, float]:
        """Return the utilization of the data and model GPUs over 3 s, updated every 2 s; empty if unknown."""
        has_both = self._run.data is not None and self._run.model is not None
        t0_s, t1_s = now_s - _DRIVER_DELAY_S - 3.0, now_s - _DRIVER_DELAY_S
        if has_both and now_s >= self._recent_s + 2.0 and t0_s >= started_s:
            self._recent_s = now_s
            use = self._gpus_between(t0_s, t1_s, None, started_s=started_s)
            shown = {gpu.role: gpu.figures.utilization for gpu in use.devices}
            self._recent = {role: busy for role, busy in shown.items() if role and busy is not None}
        return self._recent

    def cpu_cores(self, t0_s: float, t1_s: float) -> float | None:
        """Return the mean number of cores that the trial kept busy; None if unknown."""
        host = self._host.between(t0_s, t1_s)
        return host.cpu_cores if host else None

    def memory_is_full(self, trial: TrialExit) -> bool:
        """Return whether nearly all memory of one of its GPUs was in use; False if unknown."""
        if trial.ended_s <= trial.started_s:
            return False
        use = self._gpus_between(trial.started_s, trial.ended_s, None, started_s=trial.started_s)
        figures = [(device.figures.peak_memory_bytes, device.figures.memory_total_bytes) for device in use.devices]
        return any(total_bytes and (peak_bytes or 0) >= _FULL * total_bytes for peak_bytes, total_bytes in figures)

    def memory(self, window: Window, *, started_s: float) -> tuple[MemorySeries, MemorySeries]:
        """Return the memory over the window: of the host, and the peak so far of the fullest GPU."""
        host = self._host.between(window.t0_s, window.t1_s)
        gpu: list[tuple[float, int]] = []
        length_s = window.t1_s - window.t0_s
        for part in range(1, _MEMORY_READINGS + 1) if self._gpus else ():
            t_s = window.t0_s + length_s * part / _MEMORY_READINGS
            use = self._gpus_between(window.t0_s, t_s, host, started_s=started_s)
            if use.peak_memory_bytes is not None:
                gpu.append((t_s, use.peak_memory_bytes))
        return host.memory if host else (), tuple(gpu)

    def usage(self, window: Window, *, started_s: float) -> tuple[HostUsage | None, GpuUsage]:
        host = self._host.between(window.t0_s, window.t1_s)
        return host, self._gpus_between(window.t0_s, window.t1_s, host, started_s=started_s)

    def _gpus_between(self, t0_s: float, t1_s: float, host: HostUsage | None, *, started_s: float) -> GpuUsage:
        own_pids = self._pids | (host.pids if host else frozenset())
        nodes = self._nodes.between(t0_s, t1_s, started_s=started_s) if self._nodes else []
        if self._gpus:
            usage = self._gpus.between(t0_s, t1_s, self._run, own_pids=own_pids, started_s=started_s)
            nodes = [usage, *nodes] if usage else nodes
        return pooled_usage(nodes) if nodes else GpuUsage()


class Simulator(Runner, Protocol):
    """Runner in virtual time, with its own clock and instruments."""

    @property
    def clock(self) -> Clock: ...

    def instruments(self) -> Instruments: ...


START_S = 30.0
"""Longest time to the first record of a collector; drivers without persistence mode are slow."""

SILENCE_S = 20.0
"""Longest time without a record of a collector."""

_MOST_OUTPUT = 8_000  # characters


class GpuCollector:
    """GPU probe of a search: one collector process, restarted once, for a ``with`` statement inside that of the guard.

    Args:
        uuids: Devices that trials may use.
        folder: For the unnamed file that the process writes into.
        remark: Called with sentences for the user, once with each.
    """

    def __init__(
        self, guard: Guard, uuids: Sequence[str], folder: Path, clock: Clock, remark: OnRemark = no_remark
    ) -> None:
        self._guard = guard
        self._uuids = tuple(uuids)
        self._folder = folder
        self._clock = clock
        self._n_started = 0
        self._was_replaced = False
        self._guard_pid: int | None = None
        self._stream: BinaryIO | None = None
        self._torn = b""
        self._output = ""  # output of the process other than records: its error
        self._is_late = False  # the last driver windows did not arrive in time
        self._given_up: str | None = None  # why
        self._timeline = GpuTimeline(self._uuids, since_s=clock.now_s())  # reset for each trial
        self._is_open = False
        self._kept: BinaryIO | None = None
        self._remarked: set[str] = set()
        self._remark = remark

    def __enter__(self) -> Self:
        self._start_process()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
        self._stop_process()
        if self._stream is not None:
            self._stream.close()

    # One trial

    def open(self, kept: Path) -> None:
        self._read_records()
        self._check_process(trial_begins=True)
        self._timeline.forget(self._clock.now_s())
        self._is_open = True
        with contextlib.suppress(OSError):  # the disk is full: the raw readings are for people only
            self._kept = open_new(kept)

    def lost(self, trial: TrialGpus) -> str | None:
        """Implement `GpuProbe.lost`, for final failures only."""
        self._read_records()
        self._check_process()
        losses = self._timeline.losses(self._known(trial))
        loss = next((loss for loss in losses if loss.name in FATAL_NAMES.values()), None)
        if loss is None:
            return None
        self._remark_once(f"{loss.why.removesuffix('.')}. {remedy_of(loss.name)}")
        return loss.why

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """Implement `GpuProbe.between`; waits at most 0.6 s for the last driver windows."""
        if not self._is_open:
            return None
        known = self._known(trial)
        if unknown := [name for name in trial.uuids if not any(uuid.startswith(name) for uuid in known)]:
            what = f"the trainer uses {', '.join(unknown)}, which this search does not see"
            return GpuUsage(remark=f"GPU utilization not measured: {what}")
        if not known:
            return None
        self._read_records()
        self._catch_up(t1_s)
        usage = self._timeline.between(t0_s, t1_s, own_pids=own_pids, started_s=started_s)
        devices = {device.figures.uuid: device for device in usage.devices}
        trouble = self._given_up or self._why_silent(record_s=3.0)
        for uuid in known:
            device = devices[uuid]
            if why := device.why_never_measured:
                self._remark_once(
                    f"GPU utilization not measured: {why}. If permission is denied, ask your administrator; "
                    "trials are still compared by throughput."
                )
        return usage_of_trial(replace(usage, devices=tuple(devices[uuid] for uuid in known)), trial, trouble)

    def close(self) -> None:
        self._is_open = False
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self._kept.close()
            self._kept = None

    def _remark_once(self, remark: str) -> None:
        if remark not in self._remarked:
            self._remarked.add(remark)
            self._remark(remark)

    def _known(self, trial: TrialGpus) -> list[str]:
        """Return the UUIDs of a trial's GPUs, which may be given by prefix."""
        found = (next((uuid for uuid in self._uuids if uuid.startswith(name)), None) for name in trial.uuids)
        return [uuid for uuid in found if uuid is not None]

    def _catch_up(self, t1_s: float) -> None:
        give_up_s = self._clock.now_s() + 0.6  # for the driver's windows of the trial's end
        while self._timeline.reached_s < t1_s and self._clock.now_s() < give_up_s:
            if self._given_up or self._is_late or self._timeline.losses(self._uuids):
                return
            self._clock.wait(0.05)
            self._read_records()
        self._is_late = self._timeline.reached_s < t1_s

    def _read_records(self) -> None:
        if self._stream is None:
            return
        *lines, self._torn = (self._torn + self._stream.read()).split(b"\n")
        for line in lines:
            record = of_line(line)
            if record is None:
                self._output = f"{self._output}{line.decode('utf-8', 'replace')}\n"[-_MOST_OUTPUT:]
            else:
                self._is_late = False
                self._timeline.add(record)
                if self._kept is not None:
                    with contextlib.suppress(OSError):
                        self._kept.write(line + b"\n")

    # The process

    def _start_process(self) -> None:
        self._n_started += 1
        self._torn, self._output = b"", ""
        self._timeline.restart(self._clock.now_s())
        # autotune's own location, without the working directory, which could shadow it (-P).
        env = with_python_path(inherited_environment(), Path(autotune.__file__).parents[1])
        program = {"argv": (sys.executable, "-P", "-m", gpu_process.__name__, *self._uuids), "cwd": "/", "env": env}
        with contextlib.suppress(GuardLost, OSError):  # no guard, or a full disk: it will be silent
            if self._stream is not None:
                self._stream.close()
            self._stream = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed with this object
            self._guard.start()
            self._guard_pid = self._guard.pid
            log = Path(f"/proc/{os.getpid()}/fd/{self._stream.fileno()}")
            self._guard.start_sidecar(f"gpu collector {self._n_started}", program, log=log)

    def _stop_process(self) -> None:
        with contextlib.suppress(GuardLost):
            self._guard.stop_sidecar(f"gpu collector {self._n_started}")

    def _check_process(self, *, trial_begins: bool = False) -> None:
        if self._given_up:
            return
        if self._guard.pid != self._guard_pid:  # the guard was replaced, and took the collector with it
            self._start_process()
            return
        # A trial that has lost its driver has to report that first.
        driver = self._timeline.losses() if trial_begins else ()
        why = driver[0].why if driver else self._why_silent(record_s=SILENCE_S)
        if why is None:
            return
        self._stop_process()
        if self._was_replaced:
            self._given_up = why
            self._remark(f"GPU utilization is no longer measured in this search: {why}")
        else:
            self._was_replaced = True
            self._start_process()

    def _why_silent(self, *, record_s: float) -> str | None:
        # A traceback is complete once a line after its head is not indented.
        _, begun, error = self._output.rpartition(TRACEBACK)
        if begun and re.search(r"^\S", error.partition("\n")[2], re.MULTILINE):
            return f"the GPU collector failed ({one_line(last_error(self._output))})"
        return self._timeline.silence(self._clock.now_s(), start_s=START_S, record_s=record_s)


_is_a_gpu_probe: type[GpuProbe] = GpuCollector


@contextlib.contextmanager
def gpu_collector(
    uuids: Sequence[str], guard: Guard, folder: Path, clock: Clock, remark: OnRemark = no_remark
) -> Iterator[GpuCollector | None]:
    """Yield the collector of a search; None if its trials use no GPU."""
    if not uuids:
        yield None
        return
    with GpuCollector(guard, uuids, folder, clock, remark) as collector:
        yield collector
