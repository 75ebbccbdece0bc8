"""Instruments around one trial: opened before it starts and when its process is known, closed when it has ended."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from autotune.clock import Clock
from autotune.measure.host import HostProbe
from autotune.measure.probe import GpuProbe, GpuUsage, HostUsage, MemorySeries, Probe, TrialGpus, TrialProcesses
from autotune.measure.window import Window, measure_trial
from autotune.records import GpuRole, Measurement, TraineeEvent, TrialExit
from autotune.stage_times import PipelineTimes
from autotune.trial.launch import Runner

_MEMORY_READINGS = 24  # over a window, to see whether a GPU fills up
_FULL = 0.97  # of a GPU's memory: the rest is too small for any allocation
_ON_ITS_WAY_S = 1.0  # until the driver's last windows are there: nobody waits for them


class Instruments:
    """Probes that watch the host, and the GPUs if there are any, during one trial.

    Args:
        gpus: Watches the GPUs; None if there are none.

    Attributes:
        why_lost: Reason for which a GPU of the trial, or its driver, does not answer any more, for people; None while
            they do.
    """

    def __init__(self, host: Probe[TrialProcesses, HostUsage], gpus: GpuProbe | None = None) -> None:
        self._host = host
        self._gpus = gpus
        self._trial_id = ""
        self._run = TrialGpus(uuids=())
        self._pids: set[int] = set()
        self.why_lost: str | None = None
        self._recent: Mapping[GpuRole, float] = {}
        self._recent_s = -math.inf

    @classmethod
    def of_machine(cls, clock: Clock, gpus: GpuProbe | None) -> Self:
        """Return the instruments of this machine, for one trial.

        Args:
            gpus: See `autotune.trial.gpu_collector`.
        """
        return cls(HostProbe(clock), gpus)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.close()
        if self._gpus:
            self._gpus.close()

    def expect(self, trial_id: str, trial: TrialGpus, kept: Path) -> None:
        """Prepare for a trial that is about to be started.

        Args:
            trial_id: Its name, which its processes carry.
            trial: Its GPUs, as far as is known beforehand.
            kept: File that keeps the raw readings of the GPUs.
        """
        self._trial_id = trial_id
        self._run = trial
        if self._gpus:
            self._gpus.open(kept)

    def watch(self, events: Sequence[TraineeEvent]) -> None:
        """Take the trial's new events; the host is watched from the first one on."""
        if events and not self._pids:
            self._host.open(TrialProcesses(trial_id=self._trial_id, pid=events[0].pid))
        self._pids.update(event.pid for event in events)
        if told := [name for event in events for name in event.devices]:
            known = self._run.uuids if self._run.reported else ()
            self._run = replace(self._run, uuids=tuple(dict.fromkeys((*known, *told))), reported=True)
        if self._gpus:
            self.why_lost = self._gpus.lost(self._run)

    def recent_utilization(self, now_s: float, *, started_s: float) -> Mapping[GpuRole, float]:
        """Return the utilization of the GPUs of data and model over the last seconds, read anew every other second.

        Returns:
            Nothing where data and model do not have a GPU each, or it is not known.
        """
        has_both = self._run.data is not None and self._run.model is not None
        t0_s, t1_s = now_s - _ON_ITS_WAY_S - 3.0, now_s - _ON_ITS_WAY_S  # length of what is shown while a trial goes on
        if has_both and now_s >= self._recent_s + 2.0 and t0_s >= started_s:
            self._recent_s = now_s
            use = self._gpus_between(t0_s, t1_s, None, started_s=started_s)
            shown = {gpu.role: gpu.figures.utilization for gpu in use.devices} if use else {}
            self._recent = {role: busy for role, busy in shown.items() if role and busy is not None}
        return self._recent

    def cpu_cores(self, t0_s: float, t1_s: float) -> float | None:
        """Return the mean number of cores that the trial kept busy between two times; None if that is not known."""
        host = self._host.between(t0_s, t1_s)
        return host.cpu_cores if host else None

    def memory_is_full(self, trial: TrialExit) -> bool:
        """Return whether nearly all memory of one of the trial's GPUs was in use; False if that is not known."""
        began_s, ended_s = trial.started_s, trial.ended_s
        if not self._gpus or ended_s <= began_s:
            return False
        use = self._gpus.between(began_s, ended_s, self._run, own_pids=self._pids, started_s=began_s)
        return use is not None and any(
            (device.figures.peak_memory_bytes or 0) >= _FULL * device.figures.memory_total_bytes
            for device in use.devices
            if device.figures.memory_total_bytes
        )

    def memory(self, window: Window, *, started_s: float) -> tuple[MemorySeries, MemorySeries]:
        """Return the memory that the trial used over its window: of the host, and of its fullest GPU as far as known.

        That of a GPU is the most up to each time, as the driver has no other that is free of gaps.
        """
        host = self._host.between(window.t0_s, window.t1_s)
        gpu: list[tuple[float, int]] = []
        length_s = window.t1_s - window.t0_s
        for part in range(1, _MEMORY_READINGS + 1) if self._gpus else ():
            t_s = window.t0_s + length_s * part / _MEMORY_READINGS
            use = self._gpus_between(window.t0_s, t_s, host, started_s=started_s)
            if use and use.peak_memory_bytes is not None:
                gpu.append((t_s, use.peak_memory_bytes))
        return host.memory if host else (), tuple(gpu)

    def _gpus_between(self, t0_s: float, t1_s: float, host: HostUsage | None, *, started_s: float) -> GpuUsage | None:
        if not self._gpus:
            return None
        own_pids = self._pids | (host.pids if host else frozenset())
        return self._gpus.between(t0_s, t1_s, self._run, own_pids=own_pids, started_s=started_s)

    def measure(
        self,
        window: Window,
        *,
        started_s: float,
        default_samples: float | None,
        filling: bool,
        stages: PipelineTimes | None,
    ) -> tuple[Measurement, GpuUsage]:
        """Summarize a trial's window with the readings of the machine over the same time; see `measure_trial`."""
        host = self._host.between(window.t0_s, window.t1_s)
        gpu = self._gpus_between(window.t0_s, window.t1_s, host, started_s=started_s)
        measurement = measure_trial(
            window,
            started_s=started_s,
            default_samples=default_samples,
            host=host,
            gpu=gpu,
            filling=filling,
            stages=stages,
        )
        return measurement, gpu or GpuUsage()


class Simulator(Runner, Protocol):
    """Runner in virtual time, which supplies its own clock and instruments."""

    @property
    def clock(self) -> Clock:
        """Virtual clock that the runner advances."""
        ...

    def instruments(self) -> Instruments:
        """Return the instruments for one trial."""
        ...
