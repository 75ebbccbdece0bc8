"""Availability of GPUs: since when a device, the driver, or the whole collector gives no readings.

Three things can keep readings away. A device or the driver is *lost*: the collector has said so, with a name. A
question to the driver is *blocked*: the collector has said that it has no answer yet. Or the collector is *silent*: it
says nothing, not even that. Whoever waits for readings asks here, each with limits of its own: a trial that begins and
needs a collector, one that goes on and cannot do without its GPU, one that has ended and wants a reason for missing
figures, and the live monitor.
"""

import math
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autotune.gpu.collect.records import CallBlocked, GpuFound, GpuLost, Record, StreamStarted


@dataclass(frozen=True, kw_only=True)
class SilenceLimits:
    """Longest times without readings that are no silence yet.

    Attributes:
        start_s: From the start of the collector to its first record.
        record_s: From its newest record to now; at least a few seconds, as it writes one every second.
        answer_s: From a question to the driver to now, while it has no answer.
    """

    start_s: float
    record_s: float
    answer_s: float


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Reason why no records come, though some should.

    Attributes:
        uuid: The device that the driver does not answer about; None if it is about none, or the collector is silent.
        why: The reason, for people.
    """

    uuid: str | None
    why: str


@dataclass
class _Absence:
    """Stretch of time in which a device, or the driver, was lost."""

    loss: GpuLost
    until_s: float = math.inf


class GpuAvailability:
    """State of some devices, their driver and their collector; one thread may add records while another asks.

    Args:
        uuids: The devices; records of others count as records only.
        since_s: Monotonic time from which on records are to be expected.
    """

    def __init__(self, uuids: Collection[str], *, since_s: float) -> None:
        self._uuids = frozenset(uuids)
        self._lock = threading.Lock()
        self._began_s = since_s
        self._newest_s: float | None = None
        self._blocked: CallBlocked | None = None
        self._absences: dict[str | None, list[_Absence]] = {}  # under None, the driver's

    def add(self, record: Record) -> None:
        """Take account of a record, in the order in which the collector writes them."""
        with self._lock:
            self._newest_s = record.t_s if self._newest_s is None else max(self._newest_s, record.t_s)
            self._blocked = record if isinstance(record, CallBlocked) else None
            match record:
                case StreamStarted():
                    self._end_absence(None, record.t_s)
                case GpuFound():
                    self._end_absence(record.uuid, record.t_s)
                case GpuLost() if record.uuid is None or record.uuid in self._uuids:
                    self._end_absence(record.uuid, record.t_s)
                    self._absences.setdefault(record.uuid, []).append(_Absence(record))
                case _:
                    pass

    def restart(self, now_s: float) -> None:
        """Expect the records of a new collector from now on; it will say itself which losses still last."""
        with self._lock:
            self._began_s, self._newest_s, self._blocked = now_s, None, None
            for uuid in self._absences:
                self._end_absence(uuid, now_s)

    def forget(self, before_s: float) -> None:
        """Drop losses that were over before that time."""
        with self._lock:
            for absences in self._absences.values():
                absences[:] = [absence for absence in absences if absence.until_s >= before_s]

    def losses(self, uuids: Iterable[str] = ()) -> tuple[GpuLost, ...]:
        """Return the losses that last: first the driver's, then those of these devices."""
        with self._lock:
            return tuple(loss for uuid in (None, *uuids) if (loss := self._lasting(uuid)))

    def loss_within(self, uuid: str, t0_s: float, t1_s: float) -> GpuLost | None:
        """Return the first loss of a device that lasted for any part of a stretch of time; None if it was there."""
        with self._lock:
            for absence in self._absences.get(uuid, ()):
                if absence.loss.t_s <= t1_s and absence.until_s >= t0_s:
                    return absence.loss
        return None

    @property
    def is_undisturbed(self) -> bool:
        """True unless the driver or a device is lost, or a question has no answer."""
        with self._lock:
            return self._blocked is None and not any(map(self._lasting, self._absences))

    def silence(self, now_s: float, limits: SilenceLimits) -> Silence | None:
        """Return the silence that is longer than its limit; None if there is none.

        There is none where nothing is to be expected either: the driver is lost, or every device.
        """
        with self._lock:
            if self._lasting(None) or all(map(self._lasting, self._uuids)):
                return None
            if self._newest_s is None:
                waited_s = now_s - self._began_s
                why = f"the GPU collector has not begun after {waited_s:.0f} s"
                return Silence(uuid=None, why=why) if waited_s > limits.start_s else None
            if blocked := self._blocked:  # nor does it say anything else meanwhile
                lasting_s = now_s - blocked.since_s
                why = f"the NVIDIA driver has not answered for {lasting_s:.0f} s ({blocked.capability})"
                return Silence(uuid=blocked.uuid, why=why) if lasting_s > limits.answer_s else None
            silent_s = now_s - self._newest_s
            why = f"the GPU collector has said nothing for {silent_s:.0f} s"
            return Silence(uuid=None, why=why) if silent_s > limits.record_s else None

    def _lasting(self, uuid: str | None) -> GpuLost | None:
        absences = self._absences.get(uuid)
        return absences[-1].loss if absences and absences[-1].until_s == math.inf else None

    def _end_absence(self, uuid: str | None, t_s: float) -> None:
        if self._lasting(uuid):
            self._absences[uuid][-1].until_s = t_s
