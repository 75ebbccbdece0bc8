"""Occupancy of the GPUs before a search begins: a GPU that somebody else works on cannot be measured."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autotune.clock import Clock
from autotune.measure.gpu.driver import (
    NO_LIBRARY,
    Device,
    Driver,
    DriverError,
    Occupant,
    Trouble,
    if_known,
)
from autotune.measure.gpu.records import SampledWindows

BUSY_FRACTION = 0.05
"""Share of the last second in which kernels ran; below it a desktop's drawing is not called work."""

_LOOK_BACK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class GpuOccupancy:
    """Processes and load found on one GPU.

    Attributes:
        occupants: Processes that hold it; in a container the driver may hide them.
        utilization: Share of the last second, 0..1, in which kernels ran; None where it is not reported.
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


_RETRY_S = 5.0  # until a driver that was lost is opened again


# Driver 510 is the first to say what it keeps for itself. Before it: some hundred MiB, about 1 % of a large memory.
_KEPT_BYTES = 1 << 30
_KEPT_FRACTION = 0.015
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class GpusSeen:
    """Occupancy of all GPUs of the machine.

    Attributes:
        t_s: Monotonic time before the first question: it is true of a moment since then.
        gpus: One for each GPU, or for each instance of one in MIG mode. A GPU that was seen before and is not there any
            more stays, as one of which nothing is known.
        why_unknown: Reason, for people, why nothing is known of any GPU; None otherwise.
    """

    t_s: float
    gpus: tuple[GpuOccupancy, ...] = ()
    why_unknown: str | None = None


class OccupancyReader:
    """Reader of the GPUs; every call may hang in the driver. Used by one thread at a time.

    The session with the driver stays open until `close`: to open it takes seconds where nothing else keeps the driver
    loaded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._driver: Driver | None = None
        self._devices: dict[str, _WatchedDevice] = {}
        self._known: dict[str, GpuOccupancy] = {}  # the last that was seen of each
        self._found_s = -math.inf  # when the GPUs were looked for
        self._lost: GpusSeen | None = None

    def read(self) -> GpusSeen:
        """Return the occupancy of all GPUs now; failures of the driver are part of it."""
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
        """End the session with the driver; the next reading opens another one."""
        self._devices.clear()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _read(self, began_s: float) -> GpusSeen:
        if self._driver is None:
            self._driver = Driver()
            self._find(self._driver)
            self._found_s = began_s
        elif began_s - self._found_s >= _RETRY_S and (not self._known or any(map(_is_unnamed, self._known))):
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
        """Find the GPUs; those that were known before stay."""
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
    """Return what stands for the UUID of a GPU that does not tell it."""
    return f"GPU {index}"


class _WatchedDevice:
    """One device: its questions, asked again once where they fail in passing."""

    def __init__(self, known: GpuOccupancy, device: Device, clock: Clock) -> None:
        self._known = GpuOccupancy(uuid=known.uuid, name=known.name, index=known.index)
        self._device = device
        self._clock = clock
        self._windows = SampledWindows()
        self._newest_s = math.inf  # no reading before this one
        self._names: dict[int, str | None] = {}

    def read(self, name_of: Callable[[int], str]) -> GpuOccupancy:
        """Return its occupancy; raises `DriverError` where the device does not answer."""
        device = self._device
        # Memory first: what a process takes in between makes it look smaller than what is listed, and not larger.
        memory = _told(device.memory)
        held_bytes = _told(device.memory_held_bytes)
        if held_bytes is None and memory is not None:
            kept_bytes = max(_KEPT_BYTES, int(_KEPT_FRACTION * memory.total_bytes))
            held_bytes = max(0, memory.used_bytes - kept_bytes)
        holders = _told(device.holders)
        utilization = self._utilization()
        if holders is None and held_bytes is None:
            return replace(self._known, why_unknown="the NVIDIA driver tells neither processes nor memory")
        occupants = tuple(replace(one, name=self._process(one.pid, name_of)) for one in holders or ())
        self._names = {one.pid: one.name for one in occupants}
        return replace(
            self._known,
            occupants=occupants,
            utilization=utilization,
            memory_held_bytes=held_bytes,
            memory_fraction=memory.used_bytes / memory.total_bytes if memory and memory.total_bytes else None,
            clock_reasons=_told(device.clock_reasons),
        )

    def _process(self, pid: int, name_of: Callable[[int], str]) -> str | None:
        if pid not in self._names:
            name = _told(lambda: name_of(pid))
            self._names[pid] = os.path.basename(name.split("\0")[0]) or None if name else None
        return self._names[pid]

    def _utilization(self) -> float | None:
        """Return the share of time since the last reading, at least the last second, in which kernels ran."""
        samples = _told(lambda: self._device.busy_samples(self._windows.newest_us))
        now_s, epoch_s = self._clock.now_s(), self._clock.utc().timestamp()
        since_s, self._newest_s = min(self._newest_s, now_s - _LOOK_BACK_S), now_s
        windows = self._windows.of(samples or (), now_s=now_s, epoch_s=epoch_s)
        recent = [(length_s, busy) for end_s, length_s, busy in windows if end_s > since_s]
        if recent:
            return sum(length_s * busy for length_s, busy in recent) / sum(length_s for length_s, _ in recent)
        percent = _told(self._device.busy_percent)
        return None if percent is None or percent > 100 else percent / 100.0


def _told(ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer to a question, asked a second time if it fails in passing; None where there is never one."""
    for last in (False, True):
        try:
            return ask()
        except DriverError as error:
            if error.trouble in (Trouble.NOTHING_NEW, Trouble.CAPABILITY_OFF):
                return None
            if last or error.trouble is not Trouble.PASSING:
                raise
    return None


class OccupancyWatch:
    """Reader of the GPUs that is asked by one thread and never waits for long; see `OccupancyReader`.

    Each reading has a thread of its own. A driver call that hangs does so there, and is left to the end of the process.

    Args:
        wait_s: Longest real time that `look` waits for a reading. It waits no more as long as one hangs.
    """

    def __init__(self, clock: Clock, *, wait_s: float = 0.25) -> None:  # a reading takes milliseconds
        self._clock = clock
        self._wait_s = wait_s
        self._reader = OccupancyReader(clock)
        self._seen: GpusSeen | None = None
        self._asked_s = 0.0  # when the latest reading was begun
        self._reading: threading.Thread | None = None

    def look(self, *, newest_s: float) -> GpusSeen:
        """Return a reading.

        Args:
            newest_s: Monotonic time: a reading taken since then will do, and no other is made.

        Returns:
            The reading; one of which nothing is known, if the driver does not answer in time.
        """
        now_s = self._clock.now_s()
        newest_s = min(newest_s, now_s)
        if not self._is_fresh(newest_s) and not (self._reading and self._reading.is_alive()):
            self._asked_s = now_s
            self._reading = threading.Thread(target=self._read, name="gpu-occupancy", daemon=True)
            self._reading.start()
            self._reading.join(self._wait_s)
        if self._seen is not None and self._is_fresh(newest_s):
            return self._seen
        waited_s = self._clock.now_s() - self._asked_s
        return GpusSeen(t_s=now_s, why_unknown=f"the NVIDIA driver has not answered for {waited_s:.1f} s")

    def close(self) -> None:
        """End the session with the driver; may be called again."""
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
