"""Occupancy of GPUs: the processes on them before a search begins, because a busy GPU cannot be measured."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autotune.clock import Clock
from autotune.measure.gpu.driver import NO_LIBRARY, Device, Driver, DriverError, Occupant, Trouble, if_known
from autotune.measure.gpu.records import SampledWindows

BUSY_FRACTION = 0.05
"""Share of the last second in which kernels ran that makes a GPU busy; a desktop's drawing takes less."""

_LOOK_BACK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class GpuOccupancy:
    """Processes and load on one GPU. None is unknown.

    Attributes:
        occupants: Processes that hold it; a container may hide them.
        utilization: Share of the last second, 0..1, in which kernels ran.
        memory_held_bytes: Memory in use without the driver's reserve.
        memory_fraction: Share of its memory in use, 0..1.
        clock_reasons: As in `driver.reasons_of`.
        index: The driver's index of it, or of the GPU of a MIG instance.
        why_unknown: Reason, for users, why nothing is known of it.
    """

    uuid: str
    name: str
    occupants: tuple[Occupant, ...] = ()
    utilization: float | None = None
    memory_held_bytes: int | None = None
    memory_fraction: float | None = None
    clock_reasons: int | None = None
    index: int = 0
    why_unknown: str | None = None

    @property
    def busy(self) -> bool:
        """Whether a process computes on it, or kernels run."""
        return any(occupant.computes for occupant in self.occupants) or (self.utilization or 0.0) >= BUSY_FRACTION


def busy_gpus(uuids: Sequence[str], clock: Clock) -> tuple[GpuOccupancy, ...]:
    """Return those of some GPUs that are busy or unknown; raise DriverError without a working driver."""
    found = []
    with Driver() as driver:
        for uuid in uuids:
            try:
                device = driver.device(uuid)
                watched = _WatchedDevice(GpuOccupancy(uuid=uuid, name=if_known(device.name) or uuid), device, clock)
                found.append(watched.read(driver.process_name))
            except DriverError as error:
                found.append(GpuOccupancy(uuid=uuid, name=uuid, why_unknown=error.for_people))
    return tuple(gpu for gpu in found if gpu.busy or gpu.why_unknown)


_RETRY_S = 5.0  # until a lost driver is opened again


# Drivers before 510 do not report their reserve: some hundred MiB, about 1 % of a large memory.
_KEPT_BYTES = 1 << 30
_KEPT_FRACTION = 0.015
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class GpusSeen:
    """Occupancy of all GPUs of the machine.

    Attributes:
        t_s: Monotonic time before the first query.
        gpus: One per GPU, or MIG instance. A GPU that has disappeared stays, as unknown.
        why_unknown: Reason, for users, why no GPU is known.
    """

    t_s: float
    gpus: tuple[GpuOccupancy, ...] = ()
    why_unknown: str | None = None


class OccupancyReader:
    """Reader of the occupancy, for one thread at a time; calls may hang in the driver.

    The driver stays open until `close`, because to open it may take seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._driver: Driver | None = None
        self._devices: dict[str, _WatchedDevice] = {}
        self._known: dict[str, GpuOccupancy] = {}  # the last of each
        self._found_s = -math.inf  # time of the last search for GPUs
        self._lost: GpusSeen | None = None

    def read(self) -> GpusSeen:
        began_s = self._clock.now_s()
        if self._lost is not None and began_s - self._lost.t_s < _RETRY_S:
            return replace(self._lost, t_s=began_s)
        try:
            return self._read(began_s)
        except DriverError as error:
            self.close()
            is_without = error.code == NO_LIBRARY and not self._known
            self._lost = GpusSeen(t_s=began_s, why_unknown=None if is_without else error.for_people)
            return self._lost

    def close(self) -> None:
        """Close the driver; the next reading opens it again."""
        self._devices.clear()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _read(self, began_s: float) -> GpusSeen:
        is_partly_known = not self._known or any(map(_is_unnamed, self._known))
        if self._driver is None or (is_partly_known and began_s - self._found_s >= _RETRY_S):
            self._driver = self._driver or Driver()
            self._find(self._driver)
            self._found_s = began_s
        found = []
        for uuid, last in list(self._known.items()):
            try:
                device = self._devices.get(uuid) or _WatchedDevice(last, self._driver.device(uuid), self._clock)
                self._devices[uuid] = device
                found.append(device.read(self._driver.process_name))
                self._known[uuid] = found[-1]
            except DriverError as error:
                if error.trouble is Trouble.DRIVER_LOST:
                    raise
                self._devices.pop(uuid, None)
                found.append(GpuOccupancy(uuid=uuid, name=last.name, index=last.index, why_unknown=error.for_people))
        return GpusSeen(t_s=began_s, gpus=tuple(found))

    def _find(self, driver: Driver) -> None:
        for index in range(driver.count()):
            try:
                one = driver.device_at(index).facts(index)
            except DriverError as error:
                if error.trouble is Trouble.DRIVER_LOST:
                    raise
                if not any(known.index == index for known in self._known.values()):
                    unnamed = _unnamed(index)
                    self._known[unnamed] = GpuOccupancy(uuid=unnamed, name=unnamed, index=index)
                continue
            self._known.pop(_unnamed(index), None)
            for uuid in (one.uuid,) if one.mig_uuids is None else one.mig_uuids:
                self._known[uuid] = GpuOccupancy(uuid=uuid, name=one.name, index=index)


def _is_unnamed(name: str) -> bool:
    return name.startswith("GPU ")


def _unnamed(index: int) -> str:
    """Return a substitute for an unknown UUID."""
    return f"GPU {index}"


class _WatchedDevice:
    """One device, with one retry of queries that fail in passing."""

    def __init__(self, known: GpuOccupancy, device: Device, clock: Clock) -> None:
        self._known = GpuOccupancy(uuid=known.uuid, name=known.name, index=known.index)
        self._device = device
        self._clock = clock
        self._windows = SampledWindows()
        self._newest_s = math.inf  # no reading before this one
        self._names: dict[int, str | None] = {}

    def read(self, name_of: Callable[[int], str]) -> GpuOccupancy:
        """Return its occupancy; raise `DriverError` if the device does not answer."""
        device = self._device
        # Memory first: what a process allocates in between makes it less than the listed sum, not more.
        memory = _queried(device.memory)
        held_bytes = _queried(device.memory_held_bytes)
        if held_bytes is None and memory is not None:
            kept_bytes = max(_KEPT_BYTES, int(_KEPT_FRACTION * memory.total_bytes))
            held_bytes = max(0, memory.used_bytes - kept_bytes)
        holders = _queried(device.holders)
        utilization = self._utilization()
        if holders is None and held_bytes is None:
            return replace(self._known, why_unknown="the NVIDIA driver reports neither processes nor memory")
        occupants = tuple(replace(one, name=self._process(one.pid, name_of)) for one in holders or ())
        self._names = {one.pid: one.name for one in occupants}
        return replace(
            self._known,
            occupants=occupants,
            utilization=utilization,
            memory_held_bytes=held_bytes,
            memory_fraction=memory.used_bytes / memory.total_bytes if memory and memory.total_bytes else None,
            clock_reasons=_queried(device.clock_reasons),
        )

    def _process(self, pid: int, name_of: Callable[[int], str]) -> str | None:
        if pid not in self._names:
            name = _queried(lambda: name_of(pid))
            self._names[pid] = os.path.basename(name.split("\0")[0]) or None if name else None
        return self._names[pid]

    def _utilization(self) -> float | None:
        """Return the share of time in which kernels ran since the last reading, at least over the last second."""
        samples = _queried(lambda: self._device.busy_samples(self._windows.newest_us))
        now_s, epoch_s = self._clock.now_s(), self._clock.utc().timestamp()
        since_s, self._newest_s = min(self._newest_s, now_s - _LOOK_BACK_S), now_s
        windows = self._windows.of(samples or (), now_s=now_s, epoch_s=epoch_s)
        recent = [(length_s, busy) for end_s, length_s, busy in windows if end_s > since_s]
        if recent:
            return sum(length_s * busy for length_s, busy in recent) / sum(length_s for length_s, _ in recent)
        percent = _queried(self._device.busy_percent)
        return None if percent is None or percent > 100 else percent / 100.0


def _queried(query: Callable[[], Answer]) -> Answer | None:
    """Return the answer to a query, with one retry if it fails in passing; None if it is not available."""
    for last in (False, True):
        try:
            return query()
        except DriverError as error:
            if error.trouble in (Trouble.NOTHING_NEW, Trouble.CAPABILITY_OFF):
                return None
            if last or error.trouble is not Trouble.PASSING:
                raise
    return None


class OccupancyWatch:
    """Reader of the occupancy that never blocks its thread for long.

    Each reading has a separate thread, in which a driver call may hang until the process ends.

    Args:
        wait_s: Longest real time that `look` waits for a reading; 0 while one hangs.
    """

    def __init__(self, clock: Clock, *, wait_s: float = 0.25) -> None:  # a reading takes milliseconds
        self._clock = clock
        self._wait_s = wait_s
        self._reader = OccupancyReader(clock)
        self._seen: GpusSeen | None = None
        self._started_s = 0.0  # start of the latest reading
        self._reading: threading.Thread | None = None

    def look(self, *, newest_s: float) -> GpusSeen:
        """Return a reading; one of which nothing is known if the driver does not answer in time.

        Args:
            newest_s: Monotonic time since which an earlier reading is recent enough.
        """
        now_s = self._clock.now_s()
        newest_s = min(newest_s, now_s)
        if not self._is_fresh(newest_s) and not (self._reading and self._reading.is_alive()):
            self._started_s = now_s
            self._reading = threading.Thread(target=self._read, name="gpu-occupancy", daemon=True)
            self._reading.start()
            self._reading.join(self._wait_s)
        if self._seen is not None and self._is_fresh(newest_s):
            return self._seen
        waited_s = self._clock.now_s() - self._started_s
        return GpusSeen(t_s=now_s, why_unknown=f"the NVIDIA driver has not answered for {waited_s:.1f} s")

    def close(self) -> None:
        """Close the driver; idempotent."""
        closing = threading.Thread(target=self._close, name="gpu-occupancy-close", daemon=True)
        closing.start()
        closing.join(1.0)

    def _is_fresh(self, newest_s: float) -> bool:
        return self._seen is not None and self._seen.t_s >= newest_s

    def _read(self) -> None:
        self._seen = self._reader.read()

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.join()
        self._reader.close()
