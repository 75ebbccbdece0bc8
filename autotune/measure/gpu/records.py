"""Records of the GPU collector, their form as lines of JSON, and what they say of lost devices and silence.

The collector lives where a driver call may hang, its reader elsewhere: lines are all that passes between them. Times
are seconds of the monotonic clock, shares are 0..1, what could not be read is None. A reader ignores kinds of record
and fields that it does not know.
"""

import math
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

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


class StreamStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="start"):
    """Start of the stream: the collector has a driver.

    Attributes:
        v: Version of the format.
        pid: Process id of the collector.
        driver: The driver's version; empty where it does not say.
    """

    t_s: float
    v: int
    pid: int
    driver: str


class GpuFound(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="gpu"):
    """Start of the readings of a device; again after it was lost and came back."""

    t_s: float
    uuid: str
    name: str
    memory_bytes: int | None


class BusyWindows(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="busy"):
    """New driver windows of a device, in order of time.

    Attributes:
        source: Reading that the windows come from: `Capability.SAMPLES` or `Capability.RATES`.
        windows: End, length and busy share of each; see `windows`.
    """

    t_s: float
    uuid: str
    source: str
    windows: tuple[tuple[float, float, float], ...]


class GpuState(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="state"):
    """State of a device at one moment.

    Attributes:
        energy_j: Energy drawn since the driver was loaded.
        reasons: Reasons for which its clocks are held down; see `driver.REASONS`.
        holders: Process, its memory, and whether it computes (else draws), of those that hold the device.
    """

    t_s: float
    uuid: str
    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    reasons: tuple[str, ...] | None = None
    holders: tuple[tuple[int, int | None, bool], ...] | None = None


class ProcessShares(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="shares"):
    """Shares of the time from `t0_s` to `t_s` in which kernels of each process ran."""

    t0_s: float
    t_s: float
    uuid: str
    shares: tuple[tuple[int, float], ...]


class UnitActivity(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="activity"):
    """Activity of the units of a device from `t0_s` to `t_s`; see `driver.Activity`."""

    t0_s: float
    t_s: float
    uuid: str
    sm: float | None
    tensor: float | None
    dram: float | None


class CapabilityOff(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="off"):
    """Reading that the device will never give."""

    t_s: float
    uuid: str
    capability: str
    why: str


class GpuLost(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="lost"):
    """Loss of a device, or of the driver: it does not answer any more.

    Attributes:
        uuid: The device; None for the driver, and with it every device, and this is the last record.
        name: One of `driver.FATAL_NAMES`.
    """

    t_s: float
    uuid: str | None
    name: str
    why: str


Record = StreamStarted | GpuFound | BusyWindows | GpuState | ProcessShares | UnitActivity | CapabilityOff | GpuLost
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def to_line(record: Record) -> bytes:
    """Return a record as a line of JSON, newline included."""
    return msgspec.json.encode(record) + b"\n"


def of_line(line: bytes | str) -> Record | None:
    """Return the record of a line; None for a torn one, and for what is no record that this version knows."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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
        self._absences: list[_Absence] = []

    def add(self, record: Record) -> None:
        """Take account of a record, in the order in which the collector writes them."""
        with self._lock:
            self._newest_s = record.t_s if self._newest_s is None else max(self._newest_s, record.t_s)
            if isinstance(record, StreamStarted | GpuFound | GpuLost):
                uuid = None if isinstance(record, StreamStarted) else record.uuid
                self._end_absences(record.t_s, uuid)
                if isinstance(record, GpuLost) and (uuid is None or uuid in self._uuids):
                    self._absences.append(_Absence(record))

    def restart(self, now_s: float) -> None:
        """Expect the records of a new collector from now on; it will say itself which losses still last."""
        with self._lock:
            self._began_s, self._newest_s = now_s, None
            self._end_absences(now_s, None, *self._uuids)

    def forget(self, before_s: float) -> None:
        """Drop losses that were over before that time."""
        with self._lock:
            self._absences = [absence for absence in self._absences if absence.until_s >= before_s]

    def losses(self, uuids: Iterable[str] = ()) -> tuple[GpuLost, ...]:
        """Return the losses that last: first the driver's, then those of these devices."""
        with self._lock:
            lasting = self._lasting()
        return tuple(lasting[uuid] for uuid in (None, *uuids) if uuid in lasting)

    def loss_within(self, uuid: str, t0_s: float, t1_s: float) -> GpuLost | None:
        """Return the first loss of a device that lasted for any part of a stretch of time; None if it was there."""
        with self._lock:
            for absence in self._absences:
                if absence.loss.uuid == uuid and absence.loss.t_s <= t1_s and absence.until_s >= t0_s:
                    return absence.loss
        return None

    def silence(self, now_s: float, *, start_s: float, record_s: float) -> str | None:
        """Return a clause for people on a silence that is too long; None if there is none.

        There is none where nothing is to be expected either: the driver is lost, or every device.

        Args:
            start_s: Longest time from the start of the collector to its first record.
            record_s: Longest time since its newest record, of which it writes one every second.
        """
        with self._lock:
            lasting, newest_s = self._lasting(), self._newest_s
        if None in lasting or lasting.keys() >= self._uuids:
            return None
        if newest_s is None:
            waited_s = now_s - self._began_s
            return f"the GPU collector has not begun after {waited_s:.0f} s" if waited_s > start_s else None
        silent_s = now_s - newest_s
        return f"nothing was heard of the GPUs for {silent_s:.0f} s" if silent_s > record_s else None

    def _lasting(self) -> dict[str | None, GpuLost]:
        return {absence.loss.uuid: absence.loss for absence in self._absences if absence.until_s == math.inf}

    def _end_absences(self, t_s: float, *uuids: str | None) -> None:
        for absence in self._absences:
            if absence.until_s == math.inf and absence.loss.uuid in uuids:
                absence.until_s = t_s
