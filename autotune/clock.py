"""Clock interface for tests and simulations to replace, durations, and a polling thread."""

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now_s(self) -> float:
        """Return seconds of the monotonic clock, which also stamps training steps."""
        ...

    def utc(self) -> datetime:
        """Return the UTC wall-clock time."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep; return at once if not positive."""
        ...


class SystemClock:
    """Clock of this machine."""

    def now_s(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def clock_identity() -> str:
    """Return an ID of the monotonic clock, from boot and time namespace; empty if unknown.

    `autotune.trainee.ranks` has a copy.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


class VirtualClock:
    """Clock that advances only in `wait`, for simulations and tests."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._start_s = now_s
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def utc(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s - self._start_s)

    def wait(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)


# Durations: ``90s``, ``30m``, ``2h``, ``1h30m``.


_PARTS = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?")


def parse_duration_s(text: str) -> float:
    """Parse a duration like ``1h30m``, above 0 and at most a year.

    Raises:
        ValueError: It is not such a duration.
    """
    match = _PARTS.fullmatch(text.strip().lower())
    found = {unit: float(number) for unit, number in match.groupdict().items() if number} if match else {}
    if not found:
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 30m, 2h or 1h30m")
    seconds = found.get("h", 0.0) * 3600 + found.get("m", 0.0) * 60 + found.get("s", 0.0)
    if not 0 < seconds <= 365 * 24 * 3600.0:
        raise ValueError(f"{text!r} is not a usable duration; it must be above 0 and at most a year")
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration: ``8.4s``, ``2m05s``, ``1h30m``."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"


class Poller:
    """Daemon thread that calls ``read``, which returns the seconds until the next call, or None to end."""

    def __init__(self, read: Callable[[], float | None], *, name: str) -> None:
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, deadline_s: float = 2.0) -> bool:
        """Stop reading; return False if a reading in progress did not return in time, e.g. from a hung driver."""
        self._stop.set()
        if self._thread.ident is None:
            return True  # never started
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        wait_s = self._read()
        while wait_s is not None and not self._stop.wait(wait_s):
            wait_s = self._read()
