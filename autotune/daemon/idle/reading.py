"""Readings of the machine: what others do on its GPUs and CPUs, at one moment."""

from collections.abc import Collection
from dataclasses import dataclass

from autotune.measure.cpu_load import BusyProcess


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """Process of somebody else that holds a GPU.

    Attributes:
        pid: Its id, as the driver has it.
        name: Its program; None where that is not known.
        memory_bytes: GPU memory that it holds; None where the driver does not say.
    """

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """State of one GPU, or of one MIG instance.

    Attributes:
        t_s: Monotonic time at which it was read; several readings of the machine may hold the same one.
        index: The driver's number of the GPU.
        uuid: Its UUID.
        neighbours: Processes with a compute context that are not ours.
        drawing: Processes that only draw, such as a desktop.
        has_own: Whether a process of ours holds it.
        unlisted_bytes: Memory that is held though no process is listed for it; None where that cannot be told, since
            the driver says too little or hides our own processes too.
        utilization: Share of the time since the last reading, and of the last second at least, in which kernels ran;
            None where it is not reported.
        memory_fraction: Share of its memory in use, 0..1; None where it is not reported.
        throttled_by: Reasons for which its clocks are held down that make it slower; None where that is not reported.
        why_unknown: Reason, for people, why nothing is known of it; None otherwise.
    """

    t_s: float
    index: int
    uuid: str
    neighbours: tuple[GpuProcess, ...] = ()
    drawing: tuple[GpuProcess, ...] = ()
    has_own: bool = False
    unlisted_bytes: int | None = 0
    utilization: float | None = 0.0
    memory_fraction: float | None = None
    throttled_by: tuple[str, ...] | None = None
    why_unknown: str | None = None


@dataclass(frozen=True, kw_only=True)
class MachineReading:
    """State of the machine.

    Attributes:
        t_s: Monotonic time.
        span_s: Time since the last reading; 0 for the first.
        cores: Cores that this user's processes may use.
        foreign_cores: Cores that others used on average in that time; None where it is not known.
        busiest: The process of somebody else that used most of them; None where it was not looked for.
        gpus: The GPUs; empty where there is none, or nothing is known of them.
        why_no_load: Reason, for people, why there is no knowing how much of the CPU others use; None otherwise.
        why_no_gpus: Reason, for people, why nothing is known of any GPU, such as a driver that does not answer; None
            otherwise, and also where there is no driver, and so no GPU to be used by anybody.
        asleep_s: Time for which the machine was suspended since it was booted.
    """

    t_s: float
    span_s: float
    cores: float
    foreign_cores: float | None
    busiest: BusyProcess | None = None
    gpus: tuple[GpuReading, ...] = ()
    why_no_load: str | None = None
    why_no_gpus: str | None = None
    asleep_s: float = 0.0

    def why_unknown(self, uuids: Collection[str] | None) -> str | None:
        """Return the reason why there is no knowing whether others use the machine and these GPUs; None otherwise."""
        return self.why_no_load or (None if uuids is not None and not uuids else self.why_no_gpus)

    def gpus_of(self, uuids: Collection[str] | None) -> tuple[GpuReading, ...]:
        """Return the GPUs of some UUIDs, all for None; nothing is known of one that is not there."""
        if uuids is None:
            return self.gpus
        there = {gpu.uuid: gpu for gpu in self.gpus}
        return tuple(there.get(uuid) or _absent(uuid, self.t_s) for uuid in uuids)


def _absent(uuid: str, t_s: float) -> GpuReading:
    return GpuReading(t_s=t_s, index=-1, uuid=uuid, why_unknown="it is not there")
