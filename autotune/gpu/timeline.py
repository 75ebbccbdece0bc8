"""The reader's side of the GPU sampler: collects its records and answers what was seen over a stretch of time."""

import math
import threading
from collections.abc import Collection, Sequence

from autotune.gpu.collect.records import CallBlocked, Capability, GpuLost, Record, StreamStarted, of_line
from autotune.gpu.device_timeline import DeviceTimeline
from autotune.gpu.usage import DevicesUsage


class GpuTimeline:
    """What a sampler has told so far. May be fed by one thread and asked by another.

    Args:
        uuids: The devices that count, in the order in which the trial sees them.
        since_s: Since when the sampler should be telling.
    """

    def __init__(self, uuids: Sequence[str], *, since_s: float) -> None:
        self._uuids = tuple(uuids)
        self._lock = threading.Lock()
        self._seen = {uuid: DeviceTimeline(uuid=uuid) for uuid in self._uuids}
        self._driver = ""
        self._lost: GpuLost | None = None
        self._newest_s = since_s
        self._blocked: CallBlocked | None = None

    def add_line(self, line: str) -> None:
        """Takes a line of the stream.

        Raises:
            ValueError: It is torn, or none of ours.
        """
        record = of_line(line)
        if record is not None:
            self.add(record)

    def add(self, record: Record) -> None:
        """Takes a record; those of other devices are left out."""
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
        """Drops what was read before that time, so that one who watches for days needs no more memory for it."""
        with self._lock:
            for seen in self._seen.values():
                seen.forget(before_s)

    @property
    def reached_s(self) -> float:
        """Until when it is known how busy the devices were; minus infinity before the first driver window.

        Devices that never tell are left out.
        """
        with self._lock:
            telling = [seen.windows for seen in self._seen.values() if Capability.RATES not in seen.absent]
            return min((windows[-1][0] if windows else -math.inf for windows in telling), default=math.inf)

    @property
    def why_lost(self) -> str | None:
        """Why nothing more can come of the driver, or of one of the devices, for people; None while it can."""
        with self._lock:
            if self._lost is not None:
                return self._lost.why
            return next(filter(None, (seen.why_lost for seen in self._seen.values())), None)

    def why_silent(self, now_s: float, *, limit_s: float) -> str | None:
        """Why nothing has come for longer than `limit_s`, for people; None if something has.

        What is lost is silent too: see `why_lost` first.

        Args:
            now_s: Monotonic time of the question.
            limit_s: At least a few seconds: the sampler tells something every second.
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
        """What was seen over a past stretch of monotonic time.

        Args:
            t0_s: Its start.
            t1_s: Its end, later than `t0_s`.
            own_pids: Processes of the trial, as this process numbers them; also those that have ended.
            started_s: When the trial was started. From then on memory counts; and where process ids are those of
                another namespace, a process that came later is taken for the trial's own. None: memory counts from
                `t0_s`, and whose such a process is, is not known.
        """
        with self._lock:
            return DevicesUsage(
                devices=tuple(
                    self._seen[uuid].between(t0_s, t1_s, frozenset(own_pids), started_s) for uuid in self._uuids
                ),
                driver=self._driver,
                lost=None if self._lost is None or self._lost.t_s > t1_s else self._lost.why,
            )
