"""Timeline of some GPUs: the records of the collector, and their usage over any stretch of time."""

import math
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from autotune.gpu.availability import GpuAvailability
from autotune.gpu.collect.records import CallBlocked, Capability, GpuLost, Record, StreamStarted
from autotune.gpu.device_timeline import DeviceTimeline
from autotune.gpu.usage import DevicesUsage, DeviceUsage


class GpuTimeline:
    """Records of some devices so far; one thread may add records while another asks.

    Args:
        uuids: The devices that count, in the order in which the trial sees them.
        since_s: Monotonic time from which on records are to be expected.

    Attributes:
        availability: Losses and silences, by the same records.
    """

    def __init__(self, uuids: Sequence[str], *, since_s: float) -> None:
        self._uuids = tuple(uuids)
        self._lock = threading.Lock()
        self._devices = {uuid: DeviceTimeline(uuid=uuid) for uuid in self._uuids}
        self._driver = ""
        self.availability = GpuAvailability(self._uuids, since_s=since_s)

    def add(self, record: Record) -> None:
        """Add a record; those of other devices are left out."""
        self.availability.add(record)
        with self._lock:
            match record:
                case StreamStarted():
                    self._driver = record.driver
                    for device in self._devices.values():
                        device.absent.clear()  # it may be another driver now; what is still absent is said again
                case GpuLost() | CallBlocked():
                    pass
                case _ if record.uuid in self._devices:
                    self._devices[record.uuid].keep(record)

    def forget(self, before_s: float) -> None:
        """Drop records from before that time, so that days of watching need no more memory."""
        self.availability.forget(before_s)
        with self._lock:
            for device in self._devices.values():
                device.forget(before_s)

    @property
    def reached_s(self) -> float:
        """Time up to which the utilization of all devices is known; minus infinity before the first driver window.

        Devices that never report it are left out.
        """
        with self._lock:
            telling = [device.windows for device in self._devices.values() if Capability.RATES not in device.absent]
            return min((windows[-1][0] if windows else -math.inf for windows in telling), default=math.inf)

    def between(
        self, t0_s: float, t1_s: float, *, own_pids: Collection[int] = (), started_s: float | None = None
    ) -> DevicesUsage:
        """Return the usage of the devices over a past stretch of monotonic time.

        Args:
            t0_s: Its start.
            t1_s: Its end, later than `t0_s`.
            own_pids: Processes of the trial, as this process numbers them; also those that have ended.
            started_s: When the trial was started. From then on memory counts; and where process ids are those of
                another namespace, a process that came later is taken for the trial's own. None: memory counts from
                `t0_s`, and the owner of such a process is not known.
        """
        with self._lock:
            driver = self._driver
            usages = [self._devices[uuid].between(t0_s, t1_s, frozenset(own_pids), started_s) for uuid in self._uuids]
        # The driver's loss is that of all devices, and spoils no stretch that ended before it.
        lost = next((loss.why for loss in self.availability.losses() if loss.t_s <= t1_s), None)
        return DevicesUsage(devices=tuple(map(self._with_loss, usages)), driver=driver, lost=lost)

    def _with_loss(self, usage: DeviceUsage) -> DeviceUsage:
        loss = self.availability.loss_within(usage.figures.uuid, usage.t0_s, usage.t1_s)
        return usage if loss is None else replace(usage, lost=loss.name)
