"""Poller of the GPUs for the page and the metrics: one short look a second, in a thread of its own."""

import threading
from collections.abc import Callable, Collection

from autotune.clock import Clock
from autotune.daemon.web.daemon_view import GpuSample, GpuUser
from autotune.gpu.driver import Device, Driver, GpuFacts, gpus
from autotune.gpu.driver_errors import DriverError, Trouble, if_known
from autotune.gpu.throttling import reasons_of

_EVERY_S = 1.0
_AGAIN_S = 60.0  # after a driver that is not there, or does not answer
_PERCENT = 100.0


class GpuPoller:
    """Poller of all GPUs of this machine.

    Args:
        clock: The machine's clock.
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
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autotune-web-gpus", daemon=True)
        self.samples: tuple[GpuSample, ...] = ()
        self.why_none: str | None = "not looked at yet"

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a driver that hangs is left to itself."""
        self._ends.set()
        self._thread.join(timeout=1.0)

    def look(self) -> None:
        """Read every GPU once. A driver that does not answer is looked for anew by the next look."""
        try:
            if self._driver is None:
                self._open()
            own = self._own_pids()
            self.samples = tuple(self._sample(facts, device, own) for facts, device in self._devices)
        except DriverError as error:
            self._devices, self.samples, self.why_none = [], (), error.for_people
            self._leave()

    def _run(self) -> None:
        while True:
            self.look()
            if self._ends.wait(_EVERY_S if self.samples else _AGAIN_S):
                return

    def _open(self) -> None:
        inventory = gpus()
        self.why_none = inventory.why_none
        if inventory.gpus:
            self._driver = Driver()
            self._devices = [(facts, self._driver.device(facts.uuid)) for facts in inventory.gpus]

    def _leave(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _sample(self, facts: GpuFacts, device: Device, own: Collection[int]) -> GpuSample:
        now_s = self._clock.now_s()
        try:
            busy, memory = if_known(device.busy_percent), if_known(device.memory)
            limits, reasons = if_known(device.power_limits_w), if_known(device.clock_reasons)
            return GpuSample(
                t_s=now_s,
                index=facts.index,
                uuid=facts.uuid,
                name=facts.name,
                # Drivers are known to give far more than 100.
                utilization=busy / _PERCENT if busy is not None and busy <= _PERCENT else None,
                memory_used_bytes=memory.used_bytes if memory else None,
                memory_total_bytes=memory.total_bytes if memory else None,
                power_w=if_known(device.power_w),
                power_limit_w=limits[0] if limits else None,
                energy_j=if_known(device.energy_j),
                sm_clock_mhz=if_known(device.sm_clock_mhz),
                temperature_c=if_known(device.temperature_c),
                throttled_by=reasons_of(reasons) if reasons is not None else None,
                users=self._users(device, own),
            )
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            return GpuSample(
                t_s=now_s, index=facts.index, uuid=facts.uuid, name=facts.name, why_unknown=error.for_people
            )

    def _users(self, device: Device, own: Collection[int]) -> tuple[GpuUser, ...]:
        driver = self._driver
        assert driver is not None, "its device is in hand"
        return tuple(
            GpuUser(
                pid=holder.pid,
                name=if_known(lambda pid=holder.pid: driver.process_name(pid)),  # type: ignore[misc]  # cannot infer it
                memory_bytes=holder.memory_bytes,
                is_own=holder.pid in own,
            )
            for holder in if_known(device.holders) or ()
        )
