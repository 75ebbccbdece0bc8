"""Time as a seam: everything that waits or takes time stamps asks a `Clock`, which tests and simulations replace."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now_s(self) -> float:
        """Return the seconds of the monotonic clock, the one that training processes stamp their steps with."""
        ...

    def utc(self) -> datetime:
        """Return the wall clock in UTC, for stamps that people read."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait that many seconds; return at once if not positive."""
        ...


class SystemClock:
    """System clock of this machine."""

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
    """Clock that advances only when somebody waits on it, for simulations and tests.

    Args:
        now_s: Its initial reading.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self._start_s = now_s
        self._now_s = now_s

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return self._now_s

    def utc(self) -> datetime:
        """See `Clock.utc`; starts at 2030-01-01."""
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s - self._start_s)

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`; takes no time."""
        self._now_s += max(seconds, 0.0)
