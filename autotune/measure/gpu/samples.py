"""Records of the GPU collector, and their form as lines of JSON.

The collector lives where a driver call may hang, its reader elsewhere: lines are all that passes between them. Times
are seconds of the monotonic clock, shares are 0..1, what could not be read is None. A reader ignores kinds of record
and fields that it does not know.
"""

import json
import math
import threading
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, get_args

FORMAT = 1
"""Version of the lines; changed when an old reader would misread them."""

STATE_S = 1.0
"""Interval between two records of each kind but `BusyWindows` and `ProcessShares`, which come more often."""


class Capability(StrEnum):
    """Reading that a driver may or may not give of a device; the values are for people."""

    NAME = "name"
    SAMPLES = "utilization samples"
    RATES = "utilization"
    MEMORY = "memory"
    POWER = "power"
    ENERGY = "energy"
    TEMPERATURE = "temperature"
    CLOCK = "SM clock"
    REASONS = "clock reasons"
    HOLDERS = "process list"
    SHARES = "utilization by process"
    ACTIVITY = "unit activity"


@dataclass(frozen=True, kw_only=True)
class StreamStarted:
    """Start of the stream: the collector has a driver.

    Attributes:
        pid: Process id of the collector.
        driver: The driver's version; empty where it does not say.
    """

    kind: ClassVar[str] = "start"
    t_s: float
    v: int
    pid: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class GpuFound:
    """Start of the readings of a device; again after it was lost and came back."""

    kind: ClassVar[str] = "gpu"
    t_s: float
    uuid: str
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BusyWindows:
    """New driver windows of a device, in order of time.

    Attributes:
        source: Reading that the windows come from: `Capability.SAMPLES` or `Capability.RATES`.
        windows: End, length and busy share of each; see `driver_windows`.
    """

    kind: ClassVar[str] = "busy"
    t_s: float
    uuid: str
    source: str
    windows: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """State of a device at one moment.

    Attributes:
        energy_j: Energy drawn since the driver was loaded.
        reasons: Reasons for which its clocks are held down; see `throttling`.
        holders: Process, its memory, and whether it computes (else draws), of those that hold the device.
    """

    kind: ClassVar[str] = "state"
    t_s: float
    uuid: str
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    reasons: tuple[str, ...] | None = None
    holders: tuple[tuple[int, int | None, bool], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessShares:
    """Shares of the time from `t0_s` to `t_s` in which kernels of each process ran."""

    kind: ClassVar[str] = "shares"
    t0_s: float
    t_s: float
    uuid: str
    shares: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class UnitActivity:
    """Activity of the units of a device from `t0_s` to `t_s`; see `driver.Activity`."""

    kind: ClassVar[str] = "activity"
    t0_s: float
    t_s: float
    uuid: str
    sm: float | None
    tensor: float | None
    dram: float | None


@dataclass(frozen=True, kw_only=True)
class CapabilityOff:
    """Reading that the device will never give."""

    kind: ClassVar[str] = "off"
    t_s: float
    uuid: str
    capability: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ReadingCounts:
    """Number of readings tried since the last such record, and of those that failed in passing."""

    kind: ClassVar[str] = "counts"
    t_s: float
    uuid: str
    tried: tuple[tuple[str, int], ...]
    failed: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class GpuLost:
    """Loss of a device, or of the driver: it does not answer any more.

    Attributes:
        uuid: The device; None for the driver, and with it every device, and this is the last record.
        name: One of `driver_errors.FATAL_NAMES`.
    """

    kind: ClassVar[str] = "lost"
    t_s: float
    uuid: str | None
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class CallBlocked:
    """Question to the driver that has had no answer since `since_s`."""

    kind: ClassVar[str] = "blocked"
    t_s: float
    uuid: str | None
    capability: str
    since_s: float


Record = (
    StreamStarted
    | GpuFound
    | BusyWindows
    | GpuState
    | ProcessShares
    | UnitActivity
    | CapabilityOff
    | ReadingCounts
    | GpuLost
    | CallBlocked
)
_KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in get_args(Record)}


def to_line(record: Record) -> str:
    """Return a record as a line of JSON, newline included."""
    return json.dumps({"k": record.kind, **asdict(record)}, separators=(",", ":"), allow_nan=False) + "\n"


def of_line(line: str) -> Record | None:
    """Return the record of a line; None for a kind that this version does not know.

    Raises:
        ValueError: The line is torn or is none of ours.
    """
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"not a record: {line[:80]!r}")
    kind = _KINDS.get(row.get("k", ""))
    if kind is None:
        return None
    known = {item.name for item in fields(kind)}
    try:
        return kind(**{name: _frozen(value) for name, value in row.items() if name in known})
    except TypeError as error:
        raise ValueError(f"not a whole record: {line[:80]!r}") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


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
