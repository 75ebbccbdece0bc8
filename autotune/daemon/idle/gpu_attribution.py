"""Attribution of what is seen on the GPUs: to processes of ours, and to others."""

import os
from collections.abc import Collection
from pathlib import Path

from autotune.daemon.idle.reading import GpuProcess, GpuReading
from autotune.gpu.occupancy import GpuOccupancy, Occupant
from autotune.gpu.occupancy_reader import GpusSeen
from autotune.gpu.throttling import THROTTLING, reasons_of
from autotune.process.process_tree import ProcessTree, holders_of, process_stat

_CUDA_DEVICE = "/dev/nvidia-uvm"  # CUDA opens it, and what only reads the driver does not
_EXPLAINED_BYTES = 64 << 20
_REMEMBERED_S = 5.0  # for a process of ours that has ended between two questions
_INITIAL_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h


def sees_all_pids() -> bool:
    """Return True outside of containers: the driver's process ids are those of /proc then."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_NAMESPACE
    except OSError:
        return False


class GpuAttribution:
    """Tells apart who holds the GPUs, over successive looks.

    In a container the driver's process ids are those of the host, or it shows no process at all. Then processes that
    are not known count as ours as far as processes of ours use CUDA and are not listed.

    Args:
        shares_pids: Whether the driver's process ids are those of /proc; None finds out.
        cuda_device: Path with which the name of a file begins that a process has open if, and only if, it uses CUDA.
    """

    def __init__(self, *, shares_pids: bool | None = None, cuda_device: str = _CUDA_DEVICE) -> None:
        self._shares_pids = sees_all_pids() if shares_pids is None else shares_pids
        self._cuda_device = cuda_device
        self._own: dict[int, float] = {}  # our processes, with the time at which they were last there
        self._unknown: frozenset[int] = frozenset()  # processes of the last look that are nowhere in /proc
        self._seen: GpusSeen | None = None
        self._readings: tuple[GpuReading, ...] = ()

    def of(self, seen: GpusSeen, tree: ProcessTree) -> tuple[GpuReading, ...]:
        """Return the readings of the GPUs.

        Args:
            seen: The newest look at the GPUs. One that was given before has the same answer: since then processes of
                ours may have ended.
            tree: Our processes.
        """
        if seen is self._seen:
            return self._readings
        self._seen = seen
        listed = {occupant.pid for gpu in seen.gpus for occupant in gpu.occupants}
        own = tree.known()
        may_be_hidden = not self._shares_pids or not all(map(_is_explained, seen.gpus))
        if may_be_hidden or not listed <= own.keys():
            own = tree.look()  # after the driver's list: it cannot hold one of ours that is not found here
        self._own |= dict.fromkeys(own, seen.t_s)
        self._own = {pid: t_s for pid, t_s in self._own.items() if seen.t_s - t_s <= _REMEMBERED_S}
        hidden = self._hidden_own(own, listed) if may_be_hidden else 0
        strangers = listed - self._own.keys()
        nowhere = frozenset(pid for pid in strangers if self._is_nowhere(pid))
        # One that is gone by now may have been ours, too short-lived to be seen.
        passing = (nowhere - self._unknown) if self._shares_pids else frozenset()
        self._unknown = nowhere
        self._readings = tuple(_reading(gpu, seen.t_s, self._own, passing, hidden) for gpu in seen.gpus)
        return self._readings

    def _hidden_own(self, own: Collection[int], listed: Collection[int]) -> int:
        """Return the number of our processes that use CUDA and are not in the driver's lists."""
        others = [pid for pid in own if pid not in listed and pid != os.getpid()]
        return len(holders_of(others, self._cuda_device))

    def _is_nowhere(self, pid: int) -> bool:
        stat = process_stat(pid)
        return stat is None or stat.is_dead


def _is_explained(gpu: GpuOccupancy) -> bool:
    unlisted_bytes = _unlisted_bytes(gpu)
    return unlisted_bytes is not None and unlisted_bytes < _EXPLAINED_BYTES


def _unlisted_bytes(gpu: GpuOccupancy) -> int | None:
    if gpu.memory_held_bytes is None:
        return None
    listed = [occupant.memory_bytes for occupant in gpu.occupants]
    known = [held for held in listed if held is not None]
    return gpu.memory_held_bytes - sum(known) if len(known) == len(listed) else None


def _reading(gpu: GpuOccupancy, t_s: float, own: Collection[int], passing: Collection[int], hidden: int) -> GpuReading:
    if gpu.why_unknown is not None:
        return GpuReading(t_s=t_s, index=gpu.index, uuid=gpu.uuid, why_unknown=gpu.why_unknown)
    others = [one for one in gpu.occupants if one.pid not in own and one.pid not in passing]
    computing = [one for one in others if one.computes]
    return GpuReading(
        t_s=t_s,
        index=gpu.index,
        uuid=gpu.uuid,
        neighbours=tuple(map(_process, computing[hidden:])),
        drawing=tuple(_process(one) for one in others if not one.computes),
        has_own=hidden > 0 or any(one.pid in own for one in gpu.occupants),
        unlisted_bytes=None if hidden else _unlisted_bytes(gpu),
        utilization=gpu.utilization,
        memory_fraction=gpu.memory_fraction,
        throttled_by=_throttled_by(gpu.clock_reasons),
    )


def _throttled_by(reasons: int | None) -> tuple[str, ...] | None:
    return None if reasons is None else tuple(reason for reason in reasons_of(reasons) if reason in THROTTLING)


def _process(occupant: Occupant) -> GpuProcess:
    return GpuProcess(pid=occupant.pid, name=occupant.name, memory_bytes=occupant.memory_bytes)
