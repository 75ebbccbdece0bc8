"""Collector of one search: a process below the guard that polls the GPUs, and the readings of each trial."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import autotune
from autotune.clock import Clock
from autotune.events import OnRemark, no_remark
from autotune.files import open_new
from autotune.measure.gpu import collector as gpu_process
from autotune.measure.gpu.driver import FATAL_NAMES, remedy_of
from autotune.measure.gpu.records import of_line
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.usage import usage_of_trial
from autotune.measure.probe import GpuProbe, GpuUsage, TrialGpus
from autotune.process import inherited_environment
from autotune.trial.error_text import TRACEBACK, last_error, one_line
from autotune.trial.guard import Guard, GuardLost, Program

START_S = 30.0
"""Time to the first record after which a collector is replaced: a driver without persistence mode takes its own."""

SILENCE_S = 20.0
"""Time without a record after which a collector is replaced: it has ended, or hangs in the driver."""

_MOST_OUTPUT = 8_000  # characters


class GpuCollector:
    """GPU probe of a search: keeps one collector process, replaces it once, and gives each trial its usage.

    Used in a ``with`` statement, inside that of the guard; see `GpuProbe` for what is done for each trial. The process
    writes into a file without a name, which is gone with the last process that has it open.

    Args:
        guard: The collector process lives below it. Owned by the caller.
        uuids: The devices that trials may use, at least one.
        folder: Folder on the disk for that file.
        remark: Called with sentences for the user, once with each.
    """

    def __init__(
        self, guard: Guard, uuids: Sequence[str], folder: Path, clock: Clock, remark: OnRemark = no_remark
    ) -> None:
        self._guard = guard
        self._uuids = tuple(uuids)
        self._folder = folder
        self._clock = clock
        self._begun = 0
        self._was_replaced = False
        self._guard_pid: int | None = None
        self._stream: BinaryIO | None = None
        self._torn = b""
        self._output = ""  # what the process has written besides records: of its error
        self._is_late = False  # the last driver windows were waited for in vain
        self._given_up: str | None = None  # why
        self._timeline = GpuTimeline(self._uuids, since_s=clock.now_s())  # of all trials, one after the other
        self._is_open = False
        self._kept: BinaryIO | None = None
        self._said: set[str] = set()
        self._remark = remark

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._stop_process()
        if self._stream is not None:
            self._stream.close()

    # One trial

    def open(self, kept: Path) -> None:
        """Open a trial's timeline; see `GpuProbe.open`."""
        self._take()
        self._look_after(trial_begins=True)
        self._timeline.forget(self._clock.now_s())
        self._is_open = True
        with contextlib.suppress(OSError):  # the disk is full: the raw readings are for people only
            self._kept = open_new(kept)

    def lost(self, trial: TrialGpus) -> str | None:
        """Return the loss of a trial's GPU; see `GpuProbe.lost`. A failure not known to be final does not count."""
        self._take()
        self._look_after()
        losses = self._timeline.availability.losses(self._known(trial))
        loss = next((loss for loss in losses if loss.name in FATAL_NAMES.values()), None)
        if loss is None:
            return None
        self._say_once(f"{loss.why.removesuffix('.')}. {remedy_of(loss.name)}")
        return loss.why

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """Return the usage of a trial's GPUs; see `GpuProbe.between`.

        It waits for 0.6 s at most until the last driver windows are there.
        """
        if not self._is_open:
            return None
        known = self._known(trial)
        if len(known) < len(trial.uuids):
            strangers = [name for name in trial.uuids if not any(uuid.startswith(name) for uuid in self._uuids)]
            what = f"the trainer uses {', '.join(strangers)}, which this search does not see"
            return GpuUsage(remark=f"GPU utilization not measured: {what}")
        if not known:
            return None
        self._take()
        self._catch_up(t1_s)
        usage = self._timeline.between(t0_s, t1_s, own_pids=own_pids, started_s=started_s)
        devices = {device.figures.uuid: device for device in usage.devices}
        trouble = self._given_up or self._why_silent(record_s=3.0)
        for uuid in known:
            device = devices[uuid]
            if why := device.why_never_measured:
                self._say_once(
                    f"GPU utilization not measured: {why}. If that is a matter of rights, ask whoever runs the "
                    "machine; trials are compared by throughput all the same."
                )
        return usage_of_trial(replace(usage, devices=tuple(devices[uuid] for uuid in known)), trial, trouble)

    def close(self) -> None:
        """Close the trial's timeline; see `GpuProbe.close`."""
        self._is_open = False
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self._kept.close()
            self._kept = None

    def _say_once(self, remark: str) -> None:
        if remark not in self._said:
            self._said.add(remark)
            self._remark(remark)

    def _known(self, trial: TrialGpus) -> list[str]:
        """Return the UUIDs of a trial's GPUs; a trial may have said only how they begin."""
        found = (next((uuid for uuid in self._uuids if uuid.startswith(name)), None) for name in trial.uuids)
        return [uuid for uuid in found if uuid is not None]

    def _catch_up(self, t1_s: float) -> None:
        give_up_s = self._clock.now_s() + 0.6  # for what the driver has still to say of a trial's end
        while self._timeline.reached_s < t1_s and self._clock.now_s() < give_up_s:
            if self._given_up or self._is_late or self._timeline.availability.losses(self._uuids):
                return
            self._clock.wait(0.05)
            self._take()
        self._is_late = self._timeline.reached_s < t1_s

    def _take(self) -> None:
        """Take the records that were written since the last time."""
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
                self._keep(line)

    def _keep(self, line: bytes) -> None:
        if self._kept is not None:
            try:
                self._kept.write(line + b"\n")
            except OSError:
                self._kept = None

    # The process

    def _begin(self) -> None:
        self._begun += 1
        self._torn, self._output = b"", ""
        self._timeline.availability.restart(self._clock.now_s())
        # Where autotune itself comes from, and nothing of the working directory that could stand in its way (-P).
        inherited = inherited_environment()
        places = (str(Path(autotune.__file__).parents[1]), inherited.get("PYTHONPATH"))
        env = {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        program = Program(argv=(sys.executable, "-P", "-m", gpu_process.__name__, *self._uuids), cwd=Path("/"), env=env)
        with contextlib.suppress(GuardLost, OSError):  # it will be silent then: no guard, or no room on the disk
            if self._stream is not None:
                self._stream.close()
            self._stream = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed with this object
            self._guard.start()
            self._guard_pid = self._guard.pid
            log = Path(f"/proc/{os.getpid()}/fd/{self._stream.fileno()}")
            self._guard.start_sidecar(self._name, program, log=log)

    @property
    def _name(self) -> str:
        return f"gpu collector {self._begun}"

    def _stop_process(self) -> None:
        with contextlib.suppress(GuardLost):
            self._guard.stop_sidecar(self._name)

    def _look_after(self, *, trial_begins: bool = False) -> None:
        if self._given_up:
            return
        if self._guard.pid != self._guard_pid:  # the guard was replaced, and took the collector with it
            self._begin()
            return
        # A trial that has lost its driver has to hear of that first.
        driver = self._timeline.availability.losses() if trial_begins else ()
        why = driver[0].why if driver else self._why_silent(record_s=SILENCE_S)
        if why is None:
            return
        self._stop_process()
        if self._was_replaced:
            self._given_up = why
            self._remark(f"GPU utilization is not measured any more in this search: {why}")
        else:
            self._was_replaced = True
            self._begin()

    def _why_silent(self, *, record_s: float) -> str | None:
        if TRACEBACK in self._output:
            return f"the GPU collector failed ({one_line(last_error(self._output))})"
        return self._timeline.availability.silence(self._clock.now_s(), start_s=START_S, record_s=record_s)


_is_a_gpu_probe: type[GpuProbe] = GpuCollector


@contextlib.contextmanager
def gpu_collector(
    uuids: Sequence[str], guard: Guard, folder: Path, clock: Clock, remark: OnRemark = no_remark
) -> Iterator[GpuCollector | None]:
    """Yield the collector of a search; None where its trials use no GPU. See `GpuCollector`."""
    if not uuids:
        yield None
        return
    with GpuCollector(guard, uuids, folder, clock, remark) as collector:
        yield collector
