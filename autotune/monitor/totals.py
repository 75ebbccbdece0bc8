"""Totals of one GPU over all the time that it was watched."""

import math

from autotune.gpu.collect.records import BusyWindows, Capability, GpuState, Record
from autotune.gpu.throttling import THROTTLING

_ROUNDING_S = 1e-3


class GpuTotals:
    """Totals of the records of one device, in constant memory.

    Args:
        since_s: Driver windows from before that time do not count.

    Attributes:
        peak_memory_bytes: Most memory in use by all processes, of a reading every second or two; None before the
            first.
        highest_temperature_c: Highest of the readings; None before the first.
    """

    def __init__(self, *, since_s: float) -> None:
        self._newest_s = since_s
        self._covered_s = self._busy_s = 0.0
        self._polled = False
        self._power_w = _Mean()
        self._throttled = _Mean()
        self.peak_memory_bytes: int | None = None
        self.highest_temperature_c: int | None = None

    @property
    def utilization(self) -> float | None:
        """Share of the time, 0..1, in which a kernel ran; None if not known. Polled zeros are not believed."""
        if not self._covered_s or (self._polled and not self._busy_s):
            return None
        return min(1.0, self._busy_s / self._covered_s)

    @property
    def power_w(self) -> float | None:
        """Mean of the readings of its electric power."""
        return self._power_w.value

    @property
    def throttled_fraction(self) -> float | None:
        """Share of the readings that show throttling, see `throttling`."""
        return self._throttled.value

    def keep(self, record: Record) -> None:
        """Add a record of this device."""
        if isinstance(record, BusyWindows):
            self._polled = record.source == Capability.RATES
            # A device that came back tells its ring again.
            for end_s, length_s, busy in record.windows:
                if end_s - length_s >= self._newest_s - _ROUNDING_S:
                    self._newest_s = end_s
                    self._covered_s += length_s
                    self._busy_s += length_s * busy
        elif isinstance(record, GpuState):
            self.peak_memory_bytes = _larger(self.peak_memory_bytes, record.memory_bytes)
            self.highest_temperature_c = _larger(self.highest_temperature_c, record.temperature_c)
            self._power_w.add(record.power_w)
            if record.reasons is not None:
                self._throttled.add(float(not THROTTLING.isdisjoint(record.reasons)))


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._sum, self._count = self._sum + value, self._count + 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
