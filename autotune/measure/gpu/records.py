"""Records of the GPU collector, their form as lines of JSON, and driver windows made of what it reads.

The collector lives where a driver call may hang, its reader elsewhere: lines are all that passes between them. Times
are seconds of the monotonic clock, shares are 0..1, what could not be read is None. A reader ignores kinds of record
and fields that it does not know. The busy share of a device is that of *driver windows* ``(end_s, length_s, busy)``:
end, length, and the share of it in which a kernel ran.
"""

import math
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

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


class _Told(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Record at some time."""

    t_s: float


class _OfDevice(_Told, frozen=True, kw_only=True):
    """Record of one device."""

    uuid: str


class StreamStarted(_Told, frozen=True, kw_only=True, tag="start"):
    """Start of the stream: the collector has a driver.

    Attributes:
        v: Version of the format.
        pid: Process id of the collector.
        driver: The driver's version; empty where it does not say.
    """

    v: int
    pid: int
    driver: str


class GpuFound(_OfDevice, frozen=True, kw_only=True, tag="gpu"):
    """Start of the readings of a device; again after it was lost and came back."""

    name: str
    memory_bytes: int | None


class BusyWindows(_OfDevice, frozen=True, kw_only=True, tag="busy"):
    """New driver windows of a device, in order of time.

    Attributes:
        source: Reading that the windows come from: `Capability.SAMPLES` or `Capability.RATES`.
        windows: End, length and busy share of each.
    """

    source: str
    windows: tuple[tuple[float, float, float], ...]


class GpuState(_OfDevice, frozen=True, kw_only=True, tag="state"):
    """State of a device at one moment.

    Attributes:
        energy_j: Energy drawn since the driver was loaded.
        reasons: Reasons for which its clocks are held down; see `driver.REASONS`.
        holders: Process, its memory, and whether it computes (else draws), of those that hold the device.
    """

    memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    reasons: tuple[str, ...] | None = None
    holders: tuple[tuple[int, int | None, bool], ...] | None = None


class ProcessShares(_OfDevice, frozen=True, kw_only=True, tag="shares"):
    """Shares of the time from `t0_s` to `t_s` in which kernels of each process ran."""

    t0_s: float
    shares: tuple[tuple[int, float], ...]


class UnitActivity(_OfDevice, frozen=True, kw_only=True, tag="activity"):
    """Activity of the units of a device from `t0_s` to `t_s`; see `driver.Activity`."""

    t0_s: float
    sm: float | None
    tensor: float | None
    dram: float | None


class CapabilityOff(_OfDevice, frozen=True, kw_only=True, tag="off"):
    """Reading that the device will never give."""

    capability: str
    why: str


class GpuLost(_Told, frozen=True, kw_only=True, tag="lost"):
    """Loss of a device, or of the driver: it does not answer any more.

    Attributes:
        uuid: The device; None for the driver, and with it every device, and this is the last record.
        name: One of `driver.FATAL_NAMES`.
    """

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


LONGEST_S = 1.5
"""Drivers document windows of 1/6 s to 1 s; more than this between two samples is a gap, not a window."""

_FUTURE_S = 1.0

BusyWindow = tuple[float, float, float]
"""End and length in seconds, busy share."""


def clock_offset_s(stamp_us: int, *, now_s: float, epoch_s: float) -> float:
    """Return the offset that puts a driver's stamp in seconds on the monotonic clock.

    Most drivers stamp in microseconds since 1970, some since boot; no machine has been up for 30 years. A stamp that
    would lie in the future (boot time that counts suspension) is taken as now: if it is the newest, it is off by its
    age, at most a driver window.

    Args:
        stamp_us: Stamp of the newest sample, just read.
        now_s: Monotonic time of that reading.
        epoch_s: Time of that reading in seconds since 1970.
    """
    stamp_s = stamp_us / 1e6
    offset_s = now_s - epoch_s if stamp_s > 1e9 else 0.0  # some 30 years
    return offset_s if stamp_s + offset_s <= now_s + _FUTURE_S else now_s - stamp_s


class SampledWindows:
    """Windows made of a driver's samples, each once; a sample stands for the time since the one before it.

    The very first sample, and one after a gap longer than `LONGEST_S`, has no known window and makes none. Where
    samples are left out, the next one stands for the usual spacing only, and what was left out is a gap, not filled
    with a guess. Some drivers give no samples of an idle device (the authors of polarsignals' gpu-metrics-agent saw it
    on a DGX Spark): once the driver has said by other means that it is idle, `idle` makes windows of that.
    """

    def __init__(self) -> None:
        self.newest_us = 0
        """Stamp of the newest sample, from which the driver is asked to go on."""
        self._offset_s: float | None = None
        self._epoch_at_zero_s: float | None = None  # seconds since 1970 at zero of the monotonic clock
        self._spacings_us: deque[int] = deque(maxlen=33)  # of the last samples, from which the usual one is learned
        self._lag_s = math.inf  # from the end of a window to when it can be read: the least that was seen
        self._idle = False  # since the newest sample

    @property
    def newest_end_s(self) -> float | None:
        return None if self._offset_s is None else self.newest_us / 1e6 + self._offset_s

    def of(self, samples: Sequence[tuple[int, int]], *, now_s: float, epoch_s: float) -> list[BusyWindow]:
        """Return the windows of the new ones among some samples.

        Args:
            samples: Stamp in the driver's microseconds and percent, in any order, with any of the earlier ones among
                them. What is above 100 % is garbage that drivers are known to give: only its stamp is used.
            now_s: Monotonic time of the reading.
            epoch_s: Seconds since 1970 of the reading.
        """
        self._follow_the_wall_clock(epoch_s - now_s)
        new = sorted({stamp_us: percent for stamp_us, percent in samples if stamp_us > self.newest_us}.items())
        if not new:
            return []
        if self._offset_s is None:  # found once: a driver does not change what it counts from
            self._offset_s = clock_offset_s(new[-1][0], now_s=now_s, epoch_s=epoch_s)
            self._epoch_at_zero_s = epoch_s - now_s if self._offset_s == now_s - epoch_s else None

        stamps_us = [self.newest_us, *(stamp_us for stamp_us, _ in new)]
        spacings_us = [stamp_us - before_us for before_us, stamp_us in pairwise(stamps_us)]
        known_us = spacings_us[1:] if self._idle else spacings_us
        self._spacings_us.extend(spacing for spacing in known_us if spacing <= LONGEST_S * 1e6)
        usual_us = self._usual_us()
        windows: list[BusyWindow] = []
        for (stamp_us, percent), spacing_us in zip(new, spacings_us, strict=True):
            # times the usual spacing: samples are missing in between
            length_us = usual_us if spacing_us > 1.75 * usual_us else spacing_us
            if self._idle and spacing_us > length_us:
                windows += self._of_idleness(stamp_us - spacing_us, stamp_us - length_us)
            if percent <= 100 and (spacing_us <= LONGEST_S * 1e6 or self._idle):
                windows.append((stamp_us / 1e6 + self._offset_s, length_us / 1e6, percent / 100.0))
            self._idle = False
        self.newest_us = new[-1][0]
        lag_s = now_s - self.newest_us / 1e6 - self._offset_s
        if lag_s < 5.0:  # a newest sample that old was left from before the device was idle
            self._lag_s = max(0.0, min(self._lag_s, lag_s))
        return windows

    def overdue(self, now_s: float) -> bool:
        """Return True if samples are overdue, right after all that there are were taken."""
        return self._missing(now_s) > 2.5  # windows: one may be late

    def idle(self, now_s: float) -> list[BusyWindow]:
        """Return the missing windows but the last, right after the driver said that the device is idle."""
        self._idle = True
        count = int(self._missing(now_s)) - 1
        if count <= 0:
            return []
        since_us, self.newest_us = self.newest_us, self.newest_us + count * self._usual_us()
        return self._of_idleness(since_us, self.newest_us)

    def _missing(self, now_s: float) -> float:
        usual_us, newest_end_s = self._usual_us(), self.newest_end_s
        if newest_end_s is None or usual_us <= 0:
            return 0.0
        return (now_s - self._lag_s - newest_end_s) * 1e6 / usual_us

    def _of_idleness(self, since_us: int, until_us: int) -> list[BusyWindow]:
        assert self._offset_s is not None
        count = max(1, round((until_us - since_us) / self._usual_us()))
        length_us = (until_us - since_us) / count
        ends_us = (since_us + length_us * number for number in range(1, count + 1))
        return [(end_us / 1e6 + self._offset_s, length_us / 1e6, 0.0) for end_us in ends_us]

    def _usual_us(self) -> int:
        """Return a low quartile of the spacings: with gaps among the samples it is still the spacing without."""
        ranked = sorted(self._spacings_us)
        return ranked[len(ranked) // 4] if ranked else 0

    def _follow_the_wall_clock(self, epoch_at_zero_s: float) -> None:
        if self._offset_s is None or self._epoch_at_zero_s is None:
            return
        step_s = epoch_at_zero_s - self._epoch_at_zero_s
        if abs(step_s) > 0.5:  # the wall clock was set; less is the slewing of NTP
            self.newest_us += round(step_s * 1e6)
            self._offset_s -= step_s
            self._epoch_at_zero_s = epoch_at_zero_s


class PolledWindows:
    """Windows made of a value that is polled, for devices that keep no samples.

    The driver repeats its newest value until it has the next. So equal neighbours are merged, up to 1 s, the longest
    driver window, and stand for the time over which they were shown: as they describe the window before that, all lies
    up to one driver window late.
    """

    def __init__(self) -> None:
        self._shown: tuple[float, float, int] | None = None  # since when, last seen when, what

    def of(self, percent: int, *, now_s: float) -> list[BusyWindow]:
        """Return the windows that this reading completes."""
        if self._shown is None or now_s - self._shown[1] > LONGEST_S or percent > 100:
            self._shown = (now_s, now_s, percent) if percent <= 100 else None
            return []
        since_s, _, before = self._shown
        # a driver window is over after this time even if its value stayed
        if percent == before and now_s - since_s < 1.0:
            self._shown = (since_s, now_s, before)
            return []
        self._shown = (now_s, now_s, percent)
        return [(now_s, now_s - since_s, before / 100.0)] if now_s > since_s else []
