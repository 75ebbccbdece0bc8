"""Time, as one seam: everything that waits or stamps asks a `Clock`, so tests and simulations can own it."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now_s(self) -> float:
        """Seconds of the monotonic clock, the one that training processes stamp their steps with."""
        ...

    def utc(self) -> datetime:
        """The wall clock, time zone UTC, for stamps that people read."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns after that many seconds (at once if not positive)."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return time.monotonic()

    def utc(self) -> datetime:
        """See `Clock.utc`."""
        return datetime.now(UTC)

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when somebody waits on it: for simulations and tests.

    Args:
        now_s: What it shows first.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self._start_s = now_s
        self._now_s = now_s

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return self._now_s

    def utc(self) -> datetime:
        """See `Clock.utc`; starts with the year 2030."""
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s - self._start_s)

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`; takes no time."""
        self._now_s += max(seconds, 0.0)
