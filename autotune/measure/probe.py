"""The seams between a trial and the instruments that watch it from outside."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from autotune.records import GpuMeasurement, Scalar, Validity

Device = TypeVar("Device", contravariant=True)
Use = TypeVar("Use", covariant=True)


class Probe(Protocol[Device, Use]):
    """An instrument that watches one device (or process tree) during one run.

    A probe is opened once and closed once; who opened it closes it. It never ends a trial: what cannot be
    read is absent from the answer.
    """

    def open(self, device: Device) -> None:
        """Starts watching; returns at once.

        Args:
            device: What to watch, such as a trial's processes.
        """
        ...

    def between(self, t0_s: float, t1_s: float) -> Use | None:
        """What was seen over a past stretch of monotonic time; None if it was not measured."""
        ...

    def close(self) -> None:
        """Stops watching and frees the device; may be called again, and without `open`."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrialProcesses:
    """By what the processes of one trial are known.

    Attributes:
        trial_id: What they carry in ``AUTOTUNE_TRIAL_ID``; a fork of a warm interpreter does so in its memory only.
        pid: One of them, such as the first that reported.
    """

    trial_id: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class HostUsage:
    """What a trial's processes took from the host.

    Attributes:
        cpu_cores: Their CPU time per second of wall time; None where it was looked at for less than half of that time.
        peak_memory_bytes: Largest sum of their resident sets so far. Pages that processes share count once
            for each, so this is an upper bound.
        pids: The processes that were seen so far; also those that have ended.
    """

    cpu_cores: float | None
    peak_memory_bytes: int
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrialGpus:
    """The GPUs of one trial, in the order in which it sees them.

    Attributes:
        uuids: Their UUIDs, or how they begin.
        reported: Whether the trial itself says that it uses them; else it may use them.
        model: Place of the one that the model is on, where the config says so: utilization is that of this one.
    """

    uuids: tuple[str, ...]
    reported: bool = False
    model: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """What a trial did to its GPUs.

    Attributes:
        utilization: Share of time in which at least one kernel ran, 0..1, weighted by time, mean of the scored GPUs;
            None where it was not measured.
        peak_memory_bytes: Most memory that was in use on one of them so far, by all; None if it cannot be read.
        power_w: Mean electric power of all of them together; None if it cannot be read.
        devices: What each GPU showed; empty if that was not told apart.
        spoiled: `Validity.CONTAMINATED` or `Validity.THROTTLED` if that is known; else None.
        remark: Why there is no utilization, or what spoiled the trial, for people; empty if there is no such thing.
        conditions: What these numbers depend on besides the trial's values.
    """

    utilization: float | None = None
    peak_memory_bytes: int | None = None
    power_w: float | None = None
    devices: tuple[GpuMeasurement, ...] = ()
    spoiled: Validity | None = None
    remark: str = ""
    conditions: Mapping[str, Scalar] = field(default_factory=dict)


class GpuProbe(Protocol):
    """Watches the GPUs of one trial after the other. Like a `Probe` it never ends a run."""

    def open(self, kept: Path) -> None:
        """A trial is about to be started; returns at once.

        Args:
            kept: File for the raw readings of that run.
        """
        ...

    def lost(self, trial: TrialGpus) -> str | None:
        """Why a GPU of the trial, or its driver, does not answer any more, for people; None while they do.

        To be called every second or so: it also takes what there is to read.
        """
        ...

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """What was seen over a past stretch of monotonic time; None if nothing is measured here.

        Args:
            t0_s: Its start.
            t1_s: Its end, later than `t0_s`.
            trial: The GPUs that count.
            own_pids: Processes of the trial; also those that have ended.
            started_s: When the trial was started: from then on memory counts.
        """
        ...

    def close(self) -> None:
        """The trial has ended; may be called again, and without `open`."""
        ...
