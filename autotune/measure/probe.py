"""Protocols of the instruments that watch a trial from outside."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.records import GpuConditions, GpuMeasurement, Validity

MemorySeries = tuple[tuple[float, int], ...]
"""Memory in use: (monotonic time in seconds, bytes), in time order."""


class Probe(Protocol):
    """Instrument that watches the processes of one trial, opened and closed once; unknown values are None."""

    def open(self, trial_id: str, pid: int) -> None:
        """Start watching; return at once.

        Args:
            trial_id: ``AUTOTUNE_TRIAL_ID`` of the processes.
            pid: One of the processes; a fork of a warm interpreter has that variable in memory only.
        """
        ...

    def between(self, t0_s: float, t1_s: float) -> "HostUsage | None":
        """Return the usage over a past stretch of monotonic time; None if it was not measured."""
        ...

    def close(self) -> None:
        """Stop watching; idempotent, also without `open`."""
        ...


@dataclass(frozen=True, kw_only=True)
class HostUsage:
    """Host resources that a trial's processes used.

    Attributes:
        cpu_cores: CPU time per second of wall time; None if less than half of the stretch was sampled.
        peak_memory_bytes: Largest sum of resident sets so far, an upper bound: shared pages count once per process.
        memory: That sum over the stretch.
        pids: Processes seen so far, ended ones included.
    """

    cpu_cores: float | None
    peak_memory_bytes: int
    memory: MemorySeries = ()
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrialGpus:
    """GPUs of one trial, in the order in which it sees them.

    Attributes:
        reported: Whether the trial reported that it uses them; otherwise it may.
        model, data: Index of the GPU of the model, whose utilization counts, and of data; None if not in the config.
    """

    uuids: tuple[str, ...] = ()
    reported: bool = False
    model: int | None = None
    data: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """Usage of a trial's GPUs. None is unknown.

    Attributes:
        utilization: Share of time in which a kernel ran, 0..1, mean of the scored GPUs.
        peak_memory_bytes: Most memory in use on one of them so far, by all processes.
        power_w: Mean total power.
        devices: Empty if they were not measured separately.
        spoiled: `Validity.CONTAMINATED` or `Validity.THROTTLED`, if known.
        remark: Sentence, for users, on missing utilization or on what spoiled the trial; may be empty.
        conditions: State of the GPUs; None if they were not watched.
    """

    utilization: float | None = None
    peak_memory_bytes: int | None = None
    power_w: float | None = None
    devices: tuple[GpuMeasurement, ...] = ()
    spoiled: Validity | None = None
    remark: str = ""
    conditions: GpuConditions | None = None


class GpuProbe(Protocol):
    """Instrument that watches the GPUs of one trial at a time."""

    def open(self, kept: Path) -> None:
        """Prepare for a trial that is about to start, with a file for the raw readings; return at once."""
        ...

    def lost(self, trial: TrialGpus) -> str | None:
        """Drain the readings; return the reason, for users, why a GPU of the trial or its driver is lost, if any."""
        ...

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """Return the usage over a past stretch of monotonic time; None if nothing is measured here.

        Args:
            own_pids: Processes of the trial, ended ones included.
            started_s: Start of the trial, after which memory counts.
        """
        ...

    def close(self) -> None:
        """End the readings of the trial; idempotent."""
        ...
