"""Poller of the GPUs for the page and the metrics: one short look a second, in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Collection
from typing import TypeVar

from autotune.clock import Clock
from autotune.daemon.web.daemon_view import GpuSample, GpuUser
from autotune.gpu.driver import Device, Driver, gpus
from autotune.gpu.driver_errors import DriverError
from autotune.gpu.throttling import reasons_of

_EVERY_S = 1.0
_AGAIN_S = 60.0  # after a driver that is not there, or does not answer
_PERCENT = 100.0

_Answer = TypeVar("_Answer")

_log = logging.getLogger(__name__)


class GpuPoller:
    """Poller of all GPUs of this machine.

    Args:
        clock: The machine's clock.
        own_pids: Returns the processes of the daemon's own search.
    """

    def __init__(self, clock: Clock, own_pids: Callable[[], Collection[int]]) -> None:
        self._clock = clock
        self._own_pids = own_pids
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

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._poll()
            except DriverError as error:
                self.samples, self.why_none = (), str(error)
            self._ends.wait(_AGAIN_S)

    def _poll(self) -> None:
        """Read every GPU until told to end, or until there is none that answers.

        Raises:
            DriverError: The driver is gone.
        """
        inventory = gpus()
        if not inventory.gpus:
            self.samples, self.why_none = (), inventory.why_none
            return
        with Driver() as driver:
            devices = [(facts, driver.device(facts.uuid)) for facts in inventory.gpus]
            while not self._ends.wait(_EVERY_S):
                own = self._own_pids()
                self.samples = tuple(
                    self._sample(driver, device, index=facts.index, uuid=facts.uuid, name=facts.name, own=own)
                    for facts, device in devices
                )
                self.why_none = None

    def _sample(
        self, driver: Driver, device: Device, *, index: int, uuid: str, name: str, own: Collection[int]
    ) -> GpuSample:
        now_s = self._clock.now_s()
        try:
            busy, memory = _known(device.busy_percent), _known(device.memory)
            limits, reasons = _known(device.power_limits_w), _known(device.clock_reasons)
            return GpuSample(
                t_s=now_s,
                index=index,
                uuid=uuid,
                name=name,
                # Drivers are known to give far more than 100.
                utilization=busy / _PERCENT if busy is not None and busy <= _PERCENT else None,
                memory_used_bytes=memory.used_bytes if memory else None,
                memory_total_bytes=memory.total_bytes if memory else None,
                power_w=_known(device.power_w),
                power_limit_w=limits[0] if limits else None,
                energy_j=_known(device.energy_j),
                sm_clock_mhz=_known(device.sm_clock_mhz),
                temperature_c=_known(device.temperature_c),
                throttled_by=reasons_of(reasons) if reasons is not None else None,
                users=tuple(
                    GpuUser(
                        pid=holder.pid,
                        name=_known(lambda pid=holder.pid: driver.process_name(pid)),  # type: ignore[misc]
                        memory_bytes=holder.memory_bytes,
                        is_own=holder.pid in own,
                    )
                    for holder in _known(device.holders) or ()
                ),
            )
        except DriverError as error:
            return GpuSample(t_s=now_s, index=index, uuid=uuid, name=name, why_unknown=str(error))


def _known(ask: Callable[[], _Answer]) -> _Answer | None:
    """Return an answer of the driver, None where it has none.

    Raises:
        DriverError: The GPU or the driver is gone.
    """
    try:
        return ask()
    except DriverError as error:
        if error.trouble.is_fatal:
            raise
        return None
