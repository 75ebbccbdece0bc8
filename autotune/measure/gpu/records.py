"""Records of the GPU collector, their JSON lines, and driver windows.

Times are seconds of the monotonic clock, shares are 0..1, unknown values are None. Readers ignore unknown records and
fields.
"""

import math
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

FORMAT = 1
"""Version of the lines; changes if old readers would misread them."""

STATE_S = 1.0
"""Interval between records of a kind, except the more frequent `BusyWindows` and `ProcessShares`."""


class Capability(StrEnum):
    """Reading of a device that a driver may lack; values are for users."""

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


class _Timed(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    t_s: float


class _OfDevice(_Timed, frozen=True, kw_only=True):
    uuid: str


class StreamStarted(_Timed, frozen=True, kw_only=True, tag="start"):
    """Start of the stream: the collector has a driver, whose version may be empty."""

    v: int
    pid: int
    driver: str


class GpuFound(_OfDevice, frozen=True, kw_only=True, tag="gpu"):
    """Start of the readings of a device, repeated when it returns after a loss."""

    name: str
    memory_bytes: int | None


class BusyWindows(_OfDevice, frozen=True, kw_only=True, tag="busy"):
    """New driver windows of a device, in time order.

    Attributes:
        source: `Capability.SAMPLES` or `Capability.RATES`.
        windows: `BusyWindow` of each.
    """

    source: str
    windows: tuple[tuple[float, float, float], ...]


class GpuState(_OfDevice, frozen=True, kw_only=True, tag="state"):
    """State of a device at one moment.

    Attributes:
        energy_j: Energy drawn since the driver was loaded.
        reasons: Reasons why its clocks are throttled (`driver.REASONS`).
        holders: Process id, memory, and whether it computes (or draws) of each process on the device.
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
    """Activity of a device's units from `t0_s` to `t_s` (`driver.Activity`)."""

    t0_s: float
    sm: float | None
    tensor: float | None
    dram: float | None


class CapabilityOff(_OfDevice, frozen=True, kw_only=True, tag="off"):
    """Reading that the device will never give."""

    capability: str
    why: str


class GpuLost(_Timed, frozen=True, kw_only=True, tag="lost"):
    """Loss of a device, or of the driver if `uuid` is None; its name is one of `driver.FATAL_NAMES`."""

    uuid: str | None
    name: str
    why: str


Record = StreamStarted | GpuFound | BusyWindows | GpuState | ProcessShares | UnitActivity | CapabilityOff | GpuLost
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def to_line(record: Record) -> bytes:
    """Return a record as a line of JSON, newline included."""
    return msgspec.json.encode(record) + b"\n"


def of_line(line: bytes | str) -> Record | None:
    """Return the record of a line; None if it is torn or of an unknown kind."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


LONGEST_S = 1.5
"""Longest driver window; drivers document 1/6 s to 1 s. A longer time between two samples is a gap."""

_FUTURE_S = 1.0

BusyWindow = tuple[float, float, float]
"""End and length in seconds, share of it in which a kernel ran."""


def clock_offset_s(stamp_us: int, *, now_s: float, epoch_s: float) -> float:
    """Return the offset from a driver's stamps, in seconds, to the monotonic clock.

    Most drivers count microseconds since 1970, some since boot. A stamp in the future (boot time that includes
    suspension) is taken as now, which is wrong by at most a driver window.

    Args:
        stamp_us: Stamp of the newest sample, just read.
        now_s: Monotonic time of that reading.
        epoch_s: Seconds since 1970 of that reading.
    """
    stamp_s = stamp_us / 1e6
    offset_s = now_s - epoch_s if stamp_s > 1e9 else 0.0  # some 30 years
    return offset_s if stamp_s + offset_s <= now_s + _FUTURE_S else now_s - stamp_s


class SampledWindows:
    """Driver windows from samples, each once: a sample covers the time since the previous one.

    The first sample, and one after a gap of `LONGEST_S`, makes no window. After missing samples, the next one covers
    the usual spacing only. Some drivers give no samples of an idle device (seen on a DGX Spark by the authors of
    polarsignals' gpu-metrics-agent): `idle` makes windows once other readings show that it is idle.
    """

    def __init__(self) -> None:
        self.newest_us = 0
        """Stamp of the newest sample, after which the driver is queried."""
        self._offset_s: float | None = None
        self._epoch_at_zero_s: float | None = None  # seconds since 1970 at zero of the monotonic clock
        self._spacings_us: deque[int] = deque(maxlen=33)  # of the last samples, to find the usual one
        self._lag_s = math.inf  # least time from the end of a window until it could be read
        self._idle = False  # since the newest sample

    @property
    def newest_end_s(self) -> float | None:
        return None if self._offset_s is None else self.newest_us / 1e6 + self._offset_s

    def of(self, samples: Sequence[tuple[int, int]], *, now_s: float, epoch_s: float) -> list[BusyWindow]:
        """Return the windows of new samples.

        Args:
            samples: Stamp in the driver's microseconds and percent, in any order, old ones included. Above 100 %, which
                some drivers give, only the stamp is used.
            now_s, epoch_s: As in `clock_offset_s`.
        """
        self._follow_the_wall_clock(epoch_s - now_s)
        new = sorted({stamp_us: percent for stamp_us, percent in samples if stamp_us > self.newest_us}.items())
        if not new:
            return []
        if self._offset_s is None:  # found once: a driver does not change its zero
            self._offset_s = clock_offset_s(new[-1][0], now_s=now_s, epoch_s=epoch_s)
            self._epoch_at_zero_s = epoch_s - now_s if self._offset_s == now_s - epoch_s else None

        stamps_us = [self.newest_us, *(stamp_us for stamp_us, _ in new)]
        spacings_us = [stamp_us - before_us for before_us, stamp_us in pairwise(stamps_us)]
        known_us = spacings_us[1:] if self._idle else spacings_us
        self._spacings_us.extend(spacing for spacing in known_us if spacing <= LONGEST_S * 1e6)
        usual_us = self._usual_us()
        windows: list[BusyWindow] = []
        for (stamp_us, percent), spacing_us in zip(new, spacings_us, strict=True):
            # samples are missing in between
            length_us = usual_us if spacing_us > 1.75 * usual_us else spacing_us
            if self._idle and spacing_us > length_us:
                windows += self._of_idleness(stamp_us - spacing_us, stamp_us - length_us)
            if percent <= 100 and (spacing_us <= LONGEST_S * 1e6 or self._idle):
                windows.append((stamp_us / 1e6 + self._offset_s, length_us / 1e6, percent / 100.0))
            self._idle = False
        self.newest_us = new[-1][0]
        lag_s = now_s - self.newest_us / 1e6 - self._offset_s
        if lag_s < 5.0:  # an older one is from before the device was idle
            self._lag_s = max(0.0, min(self._lag_s, lag_s))
        return windows

    def overdue(self, now_s: float) -> bool:
        return self._missing(now_s) > 2.5  # windows: one may be late

    def idle(self, now_s: float) -> list[BusyWindow]:
        """Return the missing windows but the last, of a device known to be idle."""
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
        """Return a low quartile of the spacings, which gaps do not affect."""
        ranked = sorted(self._spacings_us)
        return ranked[len(ranked) // 4] if ranked else 0

    def _follow_the_wall_clock(self, epoch_at_zero_s: float) -> None:
        if self._offset_s is None or self._epoch_at_zero_s is None:
            return
        step_s = epoch_at_zero_s - self._epoch_at_zero_s
        if abs(step_s) > 0.5:  # the wall clock was set; less is NTP slewing
            self.newest_us += round(step_s * 1e6)
            self._offset_s -= step_s
            self._epoch_at_zero_s = epoch_at_zero_s


class PolledWindows:
    """Driver windows from a polled value, for devices that keep no samples.

    Equal neighbours are merged, up to the longest driver window of 1 s. They are up to one window late, because a value
    describes the window before.
    """

    def __init__(self) -> None:
        self._shown: tuple[float, float, int] | None = None  # first and last time shown, percent

    def of(self, percent: int, *, now_s: float) -> list[BusyWindow]:
        if self._shown is None or now_s - self._shown[1] > LONGEST_S or percent > 100:
            self._shown = (now_s, now_s, percent) if percent <= 100 else None
            return []
        since_s, _, before = self._shown
        # the longest driver window
        if percent == before and now_s - since_s < 1.0:
            self._shown = (since_s, now_s, before)
            return []
        self._shown = (now_s, now_s, percent)
        return [(now_s, now_s - since_s, before / 100.0)] if now_s > since_s else []
