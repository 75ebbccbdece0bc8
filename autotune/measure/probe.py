"""The seam between a run and the instruments that watch it from outside."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

Device = TypeVar("Device", contravariant=True)
Use = TypeVar("Use", covariant=True)


class Probe(Protocol[Device, Use]):
    """An instrument that watches one device (or process tree) during one run.

    A probe is opened once and closed once; who opened it closes it. It never ends a run: what cannot be
    read is absent from the answer.
    """

    def open(self, device: Device) -> None:
        """Starts watching; returns at once.

        Args:
            device: What to watch: a process id on the host, a UUID on a GPU.
        """
        ...

    def between(self, t0_s: float, t1_s: float) -> Use | None:
        """What was seen over a past stretch of monotonic time; None if it was not measured."""
        ...

    def close(self) -> None:
        """Stops watching and frees the device; may be called again, and without `open`."""
        ...


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """What a run's processes took from the host.

    Attributes:
        cpu_cores: Their CPU time per second of wall time.
        peak_memory_bytes: Largest sum of their resident sets so far. Pages that processes share count once
            for each, so this is an upper bound.
    """

    cpu_cores: float
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """What a run did to its GPU.

    Attributes:
        utilization: Share of time in which at least one kernel ran, 0..1, weighted by time.
        samples: Driver samples that it is the mean of.
        covered_fraction: Share of the asked time that these samples cover, 0..1.
        errors: Readings that failed in passing since the probe was opened.
        peak_memory_bytes: Most memory that was in use on the whole device so far; None if it cannot be read.
    """

    utilization: float
    samples: int
    covered_fraction: float
    errors: int
    peak_memory_bytes: int | None = None
