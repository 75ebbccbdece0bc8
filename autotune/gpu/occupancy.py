"""Occupancy of the GPUs before a search begins: a GPU that somebody else works on cannot be measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.clock import Clock
from autotune.gpu.driver import Device, Driver, Holder
from autotune.gpu.driver_errors import DriverError, if_known
from autotune.gpu.driver_windows import SampledWindows

BUSY_FRACTION = 0.05
"""Share of the last second in which kernels ran; below it a desktop's drawing is not called work."""

_LOOK_BACK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """Process that holds a GPU.

    Attributes:
        pid: Process id in the driver's namespace.
        memory_bytes: Memory that it holds; None where the driver does not say.
        name: Its program; None where it cannot be known.
        computes: Whether it has a compute context; else it only draws.
    """

    pid: int
    memory_bytes: int | None
    name: str | None
    computes: bool


@dataclass(frozen=True, kw_only=True)
class GpuOccupancy:
    """Processes and load found on one GPU.

    Attributes:
        occupants: Processes that hold it; in a container the driver may hide them.
        utilization: Share of the last second, 0..1, in which kernels ran; None where it is not reported.
        memory_used_bytes: Memory in use by all processes; None where it is not reported.
        memory_held_bytes: The same without what the driver keeps for itself; None where it was not asked for, too.
        memory_fraction: Share of its memory in use, 0..1; None where it is not reported.
        clock_reasons: Reasons for which its clocks are held down, see `throttling`; None where they are not reported.
        index: The driver's number for it; that of the whole GPU for a MIG instance.
        why_unknown: Why nothing is known of this GPU, for people; None if something is.
    """

    uuid: str
    name: str
    occupants: tuple[Occupant, ...] = ()
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_held_bytes: int | None = None
    memory_fraction: float | None = None
    clock_reasons: int | None = None
    index: int = 0
    why_unknown: str | None = None

    @property
    def busy(self) -> bool:
        """True if somebody works on it: a process that computes, or kernels that run."""
        return any(occupant.computes for occupant in self.occupants) or (self.utilization or 0.0) >= BUSY_FRACTION


def busy_gpus(uuids: Sequence[str], clock: Clock) -> tuple[GpuOccupancy, ...]:
    """Return those of some GPUs that are busy now, and those of which nothing can be known.

    Raises:
        DriverError: There is no driver, or it does not work.
    """
    with Driver() as driver:
        found = [_occupancy(driver, uuid, clock) for uuid in uuids]
    return tuple(gpu for gpu in found if gpu.busy or gpu.why_unknown)


def _occupancy(driver: Driver, uuid: str, clock: Clock) -> GpuOccupancy:
    try:
        device = driver.device(uuid)
        holders = if_known(device.holders) or []
        memory = if_known(device.memory)
        return GpuOccupancy(
            uuid=uuid,
            name=if_known(device.name) or uuid,
            occupants=tuple(_occupant(driver, holder) for holder in holders),
            utilization=_recent_utilization(device, clock),
            memory_used_bytes=None if memory is None else memory.used_bytes,
        )
    except DriverError as error:
        return GpuOccupancy(uuid=uuid, name=uuid, why_unknown=error.for_people)


def _occupant(driver: Driver, holder: Holder) -> Occupant:
    return Occupant(
        pid=holder.pid,
        memory_bytes=holder.memory_bytes,
        name=if_known(lambda: driver.process_name(holder.pid)),
        computes=holder.computes,
    )


def _recent_utilization(device: Device, clock: Clock) -> float | None:
    samples = if_known(lambda: device.busy_samples(0))
    now_s, epoch_s = clock.now_s(), clock.utc().timestamp()
    windows = SampledWindows().of(samples or (), now_s=now_s, epoch_s=epoch_s)
    recent = [(length_s, busy) for end_s, length_s, busy in windows if end_s > now_s - _LOOK_BACK_S]
    if recent:
        return sum(length_s * busy for length_s, busy in recent) / sum(length_s for length_s, _ in recent)
    percent = if_known(device.busy_percent)
    return None if percent is None or percent > 100 else percent / 100.0
