"""Time, as one seam: everything that waits or stamps asks a `Clock`, so tests can own it."""

import time
from datetime import UTC, datetime
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
