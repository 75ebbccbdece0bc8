"""Protocols of the instruments that watch a trial from outside."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.records import GpuConditions, GpuMeasurement, Validity

MemorySeries = tuple[tuple[float, int], ...]
"""Memory in use over time: (monotonic time in seconds, bytes), in the order of time."""


class Probe(Protocol):
    """Instrument that watches the processes of one trial.

    A probe is opened once and closed once; who opened it closes it. It never ends a trial: what cannot be
    read is absent from the answer.
    """

    def open(self, trial_id: str, pid: int) -> None:
        """Start watching; return at once.

        Args:
            trial_id: Value of their ``AUTOTUNE_TRIAL_ID``; a fork of a warm interpreter does so in its memory only.
            pid: One of them, such as the first that reported.
        """
        ...

    def between(self, t0_s: float, t1_s: float) -> "HostUsage | None":
        """Return the usage over a past stretch of monotonic time; None if it was not measured."""
        ...

    def close(self) -> None:
        """Stop watching; may be called again, and without `open`."""
        ...


@dataclass(frozen=True, kw_only=True)
class HostUsage:
    """Host resources that a trial's processes used.

    Attributes:
        cpu_cores: Their CPU time per second of wall time; None where it was looked at for less than half of that time.
        peak_memory_bytes: Largest sum of their resident sets so far. Pages that processes share count once
            for each, so this is an upper bound.
        memory: That sum over the stretch, each (time in seconds, bytes), in the order of time.
        pids: Ids of the processes seen so far; also of those that have ended.
    """

    cpu_cores: float | None
    peak_memory_bytes: int
    memory: MemorySeries = ()
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrialGpus:
    """GPUs of one trial, in the order in which it sees them.

    Attributes:
        reported: True if the trial itself says that it uses them; else it may use them.
        model: Place of the one that the model is on, where the config says so: utilization is that of this one.
        data: Place of the one that prepares the data, where the config says so.
    """

    uuids: tuple[str, ...] = ()
    reported: bool = False
    model: int | None = None
    data: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """Usage of a trial's GPUs.

    Attributes:
        utilization: Share of time in which at least one kernel ran, 0..1, weighted by time, mean of the scored GPUs;
            None where it was not measured.
        peak_memory_bytes: Most memory that was in use on one of them so far, by all; None if it cannot be read.
        power_w: Mean electric power of all of them together; None if it cannot be read.
        devices: Measurement of each GPU; empty if they were not told apart.
        spoiled: `Validity.CONTAMINATED` or `Validity.THROTTLED` if that is known; else None.
        remark: Sentence, for people, on missing utilization or on what spoiled the trial; empty if there is neither.
        conditions: State of the GPUs meanwhile; None if they were not watched.
    """

    utilization: float | None = None
    peak_memory_bytes: int | None = None
    power_w: float | None = None
    devices: tuple[GpuMeasurement, ...] = ()
    spoiled: Validity | None = None
    remark: str = ""
    conditions: GpuConditions | None = None


class GpuProbe(Protocol):
    """Instrument that watches the GPUs of one trial after the other. Like a `Probe` it never ends a trial."""

    def open(self, kept: Path) -> None:
        """Prepare for a trial that is about to be started; return at once.

        Args:
            kept: File for the raw readings of that trial.
        """
        ...

    def lost(self, trial: TrialGpus) -> str | None:
        """Return the reason, for people, why a GPU of the trial, or its driver, is lost; None while none is.

        To be called every second or so: it also takes what there is to read.
        """
        ...

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """Return the usage over a past stretch of monotonic time; None if nothing is measured here.

        Args:
            own_pids: Processes of the trial; also those that have ended.
            started_s: When the trial was started: from then on memory counts.
        """
        ...

    def close(self) -> None:
        """End the readings of the trial; may be called again, and without `open`."""
        ...
