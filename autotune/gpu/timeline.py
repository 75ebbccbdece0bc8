"""Timeline of some GPUs: the records of the collector, and their usage over any stretch of time."""

import math
import threading
from collections.abc import Collection, Sequence

from autotune.gpu.collect.records import CallBlocked, Capability, GpuLost, Record, StreamStarted
from autotune.gpu.device_timeline import DeviceTimeline
from autotune.gpu.usage import DevicesUsage


class GpuTimeline:
    """Records of some devices so far; one thread may add records while another asks.

    Args:
        uuids: The devices that count, in the order in which the trial sees them.
        since_s: Monotonic time from which on records are to be expected.
    """

    def __init__(self, uuids: Sequence[str], *, since_s: float) -> None:
        self._uuids = tuple(uuids)
        self._lock = threading.Lock()
        self._seen = {uuid: DeviceTimeline(uuid=uuid) for uuid in self._uuids}
        self._driver = ""
        self._lost: GpuLost | None = None
        self._newest_s = since_s
        self._blocked: CallBlocked | None = None

    def add(self, record: Record) -> None:
        """Add a record; those of other devices are left out."""
        with self._lock:
            self._newest_s = max(self._newest_s, record.t_s)
            if isinstance(record, CallBlocked):
                self._blocked = record
                return
            self._blocked = None
            if isinstance(record, StreamStarted):
                self._driver, self._lost = record.driver, None
            elif record.uuid is None:
                self._lost = record
            elif record.uuid in self._seen:
                self._seen[record.uuid].keep(record)

    def forget(self, before_s: float) -> None:
        """Drop records from before that time, so that days of watching need no more memory."""
        with self._lock:
            for seen in self._seen.values():
                seen.forget(before_s)

    @property
    def reached_s(self) -> float:
        """Time up to which the utilization of all devices is known; minus infinity before the first driver window.

        Devices that never report it are left out.
        """
        with self._lock:
            telling = [seen.windows for seen in self._seen.values() if Capability.RATES not in seen.absent]
            return min((windows[-1][0] if windows else -math.inf for windows in telling), default=math.inf)

    def why_silent(self, now_s: float, *, limit_s: float) -> str | None:
        """Return the reason, for people, why no record has come for longer than `limit_s`; None if one has.

        A device that is lost is silent too, which `GpuLost` has told.

        Args:
            now_s: Monotonic time of the question.
            limit_s: At least a few seconds: the collector writes a record every second.
        """
        with self._lock:
            newest_s, blocked = self._newest_s, self._blocked
        if blocked is not None and now_s - blocked.since_s > limit_s:
            which = f"{blocked.uuid}: " if blocked.uuid else ""
            lasting_s = now_s - blocked.since_s
            return f"{which}the NVIDIA driver has not answered for {lasting_s:.0f} s ({blocked.capability})"
        silent_s = now_s - newest_s
        return f"the GPU sampler has said nothing for {silent_s:.0f} s" if silent_s > limit_s else None

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
            return DevicesUsage(
                devices=tuple(
                    self._seen[uuid].between(t0_s, t1_s, frozenset(own_pids), started_s) for uuid in self._uuids
                ),
                driver=self._driver,
                lost=None if self._lost is None or self._lost.t_s > t1_s else self._lost.why,
            )
