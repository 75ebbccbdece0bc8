"""Records of the GPU collector, and their form as lines of JSON.

The collector lives where a driver call may hang, its reader elsewhere: lines are all that passes between them. Times
are seconds of the monotonic clock, shares are 0..1, what could not be read is None. A reader ignores kinds of record
and fields that it does not know.
"""

import json
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
        v: `FORMAT`.
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
        memory_bytes: Memory in use by all processes.
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
        why: A sentence for people.
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
