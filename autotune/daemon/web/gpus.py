"""Readings of the GPUs for the page and the metrics."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from autotune.clock import Clock
from autotune.measure.gpu.driver import Device, Driver, DriverError, GpuFacts, Trouble, gpus, if_known, reasons_of

Sample = Mapping[str, Any]
"""Reading of one GPU: its ``index``, ``uuid`` and ``name``, and what it says; None is "not known", never 0."""

_RETRY_S = 60.0  # after a driver that is not there, or does not answer


def _utilization(device: Device) -> float | None:
    percent = device.busy_percent()
    return percent / 100 if percent <= 100 else None  # drivers are known to give far more


_READINGS: Mapping[str, Callable[[Device], Any]] = {
    "utilization": _utilization,  # since the last reading
    "memory_used_bytes": lambda device: device.memory().used_bytes,
    "memory_total_bytes": lambda device: device.memory().total_bytes,
    "power_w": Device.power_w,
    "power_limit_w": lambda device: device.power_limits_w()[0],
    "energy_j": Device.energy_j,  # since the driver was loaded
    "sm_clock_mhz": Device.sm_clock_mhz,
    "temperature_c": Device.temperature_c,
    "throttled_by": lambda device: list(reasons_of(device.clock_reasons())),
}


class GpuPoller:
    """Poller of all GPUs of this machine.

    Args:
        own_pids: Returns the processes of the daemon's own search.

    Attributes:
        samples: The newest reading of each GPU.
        why_none: Reason, for people, why there are none; None otherwise.
    """

    def __init__(self, clock: Clock, own_pids: Callable[[], Collection[int]]) -> None:
        self._clock = clock
        self._own_pids = own_pids
        self._driver: Driver | None = None
        self._devices: list[tuple[GpuFacts, Device]] = []
        self._due_s = -math.inf
        self.samples: tuple[Sample, ...] = ()
        self.why_none: str | None = "not looked at yet"

    def look(self) -> None:
        """Read every GPU once; a driver that does not answer is looked for anew a minute later."""
        now_s = self._clock.now_s()
        if now_s < self._due_s:
            return
        try:
            if self._driver is None:
                self._open()
            own = self._own_pids()
            self.samples = tuple(self._sample(facts, device, own, now_s) for facts, device in self._devices)
        except DriverError as error:
            self.samples, self.why_none = (), error.for_people
            if self._driver is not None:
                self._driver.close()
            self._driver, self._devices = None, []
        self._due_s = now_s if self.samples else now_s + _RETRY_S

    def _open(self) -> None:
        inventory = gpus()
        self.why_none = inventory.why_none
        if inventory.gpus:
            self._driver = Driver()
            self._devices = [(facts, self._driver.device(facts.uuid)) for facts in inventory.gpus]

    def _sample(self, facts: GpuFacts, device: Device, own: Collection[int], now_s: float) -> Sample:
        known = {"t_s": now_s, "index": facts.index, "uuid": facts.uuid, "name": facts.name}
        try:
            readings = {name: if_known(lambda ask=ask: ask(device)) for name, ask in _READINGS.items()}  # type: ignore[misc]  # of a default argument
            return {**known, **readings, "users": self._users(device, own), "why_unknown": None}
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            return {**known, "why_unknown": error.for_people}

    def _users(self, device: Device, own: Collection[int]) -> list[dict[str, Any]]:
        """Return the processes on a GPU; a driver in a container may hide them."""
        driver = self._driver
        assert driver is not None, "its device is in hand"
        found = []
        for holder in if_known(device.holders) or ():
            name = if_known(lambda pid=holder.pid: driver.process_name(pid))  # type: ignore[misc]  # of a default argument
            is_own = holder.pid in own
            found.append({"pid": holder.pid, "name": name, "memory_bytes": holder.memory_bytes, "is_own": is_own})
        return found
