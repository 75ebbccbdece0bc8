"""GPU monitor: utilization over the last minute and its usual cause. Shares are 0..1."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from autotune.clock import Clock, Poller
from autotune.errors import AutotuneError, GpuError
from autotune.measure.gpu.collector import GpuPoller
from autotune.measure.gpu.driver import GpuFacts, present_gpus, visible_devices
from autotune.measure.gpu.records import STATE_S, Capability, CapabilityOff, GpuState, Record
from autotune.measure.gpu.timeline import DeviceUsage, GpuTimeline
from autotune.measure.host import descendants, process_stat
from autotune.measure.utilization import LEAST_SAMPLES, MEANINGS, Pattern, Segment, describe, pooled_utilization

_MINUTE_S = 60.0  # period of the figures and of the verdict
_KEPT_S = 1.5 * _MINUTE_S  # period of the verdict if driver windows are long and therefore few
_STALE_S = 3.0  # age at which a reading is no longer current


@dataclass(frozen=True, kw_only=True)
class ShownVerdict:
    """Verdict on the utilization, with its usual cause and remedy; see `Oscillation`."""

    pattern: str
    low: float | None
    high: float | None
    mean: float | None
    period_s: float | None
    text: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class ShownGpu:
    """Reading of a GPU or MIG instance.

    Attributes:
        trouble: Why it has no current reading.
        minute_utilization: Share of the last minute in which a kernel ran.
    """

    label: str
    uuid: str
    name: str
    trouble: str | None = None
    minute_utilization: float | None = None
    why_no_utilization: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    verdict: ShownVerdict | None = None
    why_no_verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class MonitorReading:
    """Reading of all monitored GPUs.

    Attributes:
        pid: None for all GPUs.
        notes: On the choice of GPUs.
    """

    t_s: float
    utc: datetime
    watched_s: float
    gpus: tuple[ShownGpu, ...]
    pid: int | None = None
    has_ended: bool = False
    notes: tuple[str, ...] = ()

    def document(self, kind: str = "reading") -> dict[str, Any]:
        """Return a line of ``monitor --json``; the last one is the ``summary``."""
        return {
            "format": 1,
            "kind": kind,
            "utc": self.utc.isoformat(timespec="milliseconds"),
            "monotonic_s": round(self.t_s, 3),
            "watched_s": round(self.watched_s, 3),
            "process": None if self.pid is None else {"pid": self.pid, "ended": self.has_ended},
            "notes": self.notes,
            "gpus": [asdict(gpu) for gpu in self.gpus],
        }


class Monitor:
    """Context manager that monitors all GPUs, or those of a process.

    A thread polls the driver and reconnects to a lost one. A hanging driver call blocks only that thread.

    Raises:
        GpuError: There is no GPU.
        AutotuneError: The process doesn't exist.
    """

    def __init__(self, pid: int | None, clock: Clock) -> None:
        self._clock = clock
        self._process = None if pid is None else WatchedProcess(pid)
        present = present_gpus()
        self._silent = present.silent
        self._labels = _labels(present.gpus)
        self._shown, self._notes = self._initial_gpus(present.gpus)
        self._holders_due_s = self._began_s = clock.now_s()
        self._timeline = GpuTimeline(list(self._labels), since_s=self._began_s)
        self._states: dict[str, GpuState] = {}
        self._poller = self._new_poller()
        self._polls = False
        self._has_read = threading.Event()
        self._thread = Poller(self._read, name="gpu-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        self._has_read.wait(2.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.stop(deadline_s=1.0):  # otherwise a hanging call still uses the driver
            self._poller.close()

    @property
    def every_s(self) -> float:
        """Seconds between readings, doubled above 4 GPUs to stay near 1 % of a core."""
        return STATE_S if len(self._labels) <= 4 else 2 * STATE_S

    def reading(self) -> MonitorReading:
        now_s = self._clock.now_s()
        self._timeline.forget(now_s - _KEPT_S)
        self._find_held_gpus(now_s)
        usages = self._timeline.between(now_s - _MINUTE_S, now_s).devices
        return MonitorReading(
            t_s=now_s,
            utc=self._clock.utc(),
            watched_s=now_s - self._began_s,
            pid=None if self._process is None else self._process.pid,
            has_ended=self._process is not None and self._process.has_ended,
            gpus=tuple(self._gpu(usage, now_s) for usage in usages if usage.figures.uuid in self._shown),
            notes=(*self._silent, *self._notes),
        )

    def _initial_gpus(self, present: Sequence[GpuFacts]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the GPUs to show until the driver lists the process, with notes."""
        every = tuple(self._labels)
        if self._process is None:
            return every, ()
        unknown = f"The driver lists process {self._process.pid} on no GPU"
        environ = self._process.environ()
        if environ is None:
            return every, (f"{unknown}, and its environment is not readable; showing all GPUs.",)
        visible = visible_devices(present, environ)
        if visible.why_none:
            raise GpuError(f"{unknown}: {visible.why_none}", remedy="Omit --pid to show all GPUs.")
        setting = environ.get("CUDA_VISIBLE_DEVICES")
        those = "all GPUs visible to it" if setting is None else f"those of its CUDA_VISIBLE_DEVICES={setting}"
        further = (f"{note}." for note in (visible.cut, visible.assumed) if note)
        return visible.uuids, (f"{unknown} yet; showing {those}.", *further)

    def _find_held_gpus(self, now_s: float) -> None:
        """Show only the GPUs that the process holds, once known."""
        if self._process is None or now_s < self._holders_due_s:
            return
        self._holders_due_s = now_s + 5.0  # scanning thousands of processes takes time
        own = self._process.pids()
        held = [uuid for uuid, state in self._states.items() if any(pid in own for pid, *_ in state.holders or ())]
        if held:  # kept if the driver is lost later
            self._shown, self._notes = tuple(held), ()

    def _gpu(self, usage: DeviceUsage, now_s: float) -> ShownGpu:
        figures, state = usage.figures, self._states.get(usage.figures.uuid)
        silence = self._timeline.silence(now_s, start_s=_STALE_S, record_s=_STALE_S)
        losses = self._timeline.losses([figures.uuid])
        verdict, why_no_verdict = self._verdict(usage, now_s)
        return ShownGpu(
            label=self._labels[figures.uuid],
            uuid=figures.uuid,
            name=figures.name,
            trouble=losses[0].why.removeprefix(f"{figures.uuid}: ") if losses else silence,
            minute_utilization=figures.utilization,
            why_no_utilization=usage.why_no_utilization,
            memory_used_bytes=state.memory_bytes if state and now_s - state.t_s <= _STALE_S else None,
            memory_total_bytes=figures.memory_total_bytes,
            verdict=verdict,
            why_no_verdict=why_no_verdict,
        )

    def _verdict(self, usage: DeviceUsage, now_s: float) -> tuple[ShownVerdict | None, str | None]:
        if usage.figures.utilization is None:
            return None, None
        windows = usage.windows
        if len(windows) < LEAST_SAMPLES:
            longer = self._timeline.between(now_s - _KEPT_S, now_s).devices
            windows = next(one.windows for one in longer if one.figures.uuid == usage.figures.uuid)[-LEAST_SAMPLES:]
        # The driver may have started to report only now, and may be late by some windows.
        since_s, until_s = windows[0][0] - windows[0][1], max(windows[-1][0], now_s - _STALE_S)
        judged = pooled_utilization([Segment.within(since_s, until_s, windows)])
        found = judged.oscillation
        if judged.missing or found.pattern is Pattern.INSUFFICIENT:
            return None, describe(judged)
        is_idle = found.pattern is Pattern.FLAT and found.mean is not None and found.mean < 0.005  # prints as 0 %
        verdict = ShownVerdict(
            pattern=found.pattern.value,
            low=found.low,
            high=found.high,
            mean=found.mean,
            period_s=found.period_s,
            text=describe(judged),
            meaning="almost idle" if is_idle else MEANINGS[found.pattern],
        )
        return verdict, None

    def _new_poller(self) -> GpuPoller:
        left_out = {Capability.SHARES, Capability.ACTIVITY} | ({Capability.HOLDERS} if self._process is None else set())
        return GpuPoller(tuple(self._labels), self._take, self._clock, left_out=left_out)

    def _read(self) -> float:
        wait_s = self._poller.step()
        self._has_read.set()
        if wait_s is None:  # the driver is lost, e.g. during an update
            self._poller.close()
            self._poller = self._new_poller()
            return 5.0
        # Slightly longer than the polling period, so that all GPUs are read together. The driver keeps its samples for
        # 16 s; only devices without samples are read at their own rate.
        return max(wait_s, 0.05 if self._polls else self.every_s + 0.01)

    def _take(self, record: Record) -> None:
        self._timeline.add(record)
        if isinstance(record, GpuState):
            self._states[record.uuid] = record
        elif isinstance(record, CapabilityOff) and record.capability is Capability.SAMPLES:
            self._polls = True


def _labels(present: Sequence[GpuFacts]) -> dict[str, str]:
    """Return labels by UUID, of the instances for a GPU in MIG mode."""
    labels = {}
    for gpu in sorted(present, key=lambda gpu: gpu.index):
        if gpu.mig_uuids is None:
            labels[gpu.uuid] = f"GPU {gpu.index}"
        else:
            labels |= {uuid: f"GPU {gpu.index} MIG {place}" for place, uuid in enumerate(gpu.mig_uuids)}
    if not labels:
        raise GpuError(
            "all GPUs are in MIG mode and have no instance",
            remedy="List profiles with `nvidia-smi mig -lgip`; create an instance with `nvidia-smi mig -cgi ID -C`.",
        )
    return labels


class WatchedProcess:
    """Read-only view of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._first = process_stat(pid)
        if self._first is None:
            raise AutotuneError(
                f"there is no process {pid}",
                remedy="List the processes with `ps -ef`; in a container, process ids differ from those outside.",
            )
        if self.has_ended:
            raise AutotuneError(f"process {pid} has ended", remedy="Name a running process.")

    @property
    def has_ended(self) -> bool:
        now, first = process_stat(self.pid), self._first
        # The process id may have been reused.
        return now is None or first is None or now.is_dead or now.started_s != first.started_s

    def pids(self) -> frozenset[int]:
        return frozenset((self.pid, *descendants(self.pid)))

    def environ(self) -> dict[str, str] | None:
        """Return its initial environment, if readable."""
        try:
            text = Path(f"/proc/{self.pid}/environ").read_bytes()
        except OSError:
            return None
        pairs = (os.fsdecode(line).partition("=") for line in text.split(b"\0") if b"=" in line)
        return {name: value for name, _, value in pairs}
