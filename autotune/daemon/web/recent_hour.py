"""Readings of the last hour, as means over equal stretches of time."""

import math
from collections import deque
from datetime import datetime, timedelta

STRETCH_S = 30.0
STRETCHES = 120


class RecentHour:
    """Means of some quantities over stretches of 30 s, the last 120 of them.

    Args:
        names: The quantities.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._done: deque[tuple[int, tuple[float | None, ...]]] = deque(maxlen=STRETCHES)
        self._place: int | None = None
        self._sums = [0.0] * len(names)
        self._counts = [0] * len(names)
        self._last_s = -math.inf

    def add(self, t_s: float, **values: float | None) -> None:
        """Add a reading; one of a time that was given before counts once.

        Args:
            t_s: Monotonic time; not below an earlier one.
            values: Of each quantity; None where it is not known.
        """
        if t_s <= self._last_s:
            return
        self._last_s = t_s
        place = math.floor(t_s / STRETCH_S)
        if self._place is not None and place != self._place:
            self._done.append((self._place, self._means()))
            self._sums, self._counts = [0.0] * len(self._names), [0] * len(self._names)
        self._place = place
        for index, name in enumerate(self._names):
            value = values.get(name)
            if value is not None and math.isfinite(value):
                self._sums[index] += value
                self._counts[index] += 1

    def series(self, now_s: float, digits: int = 3) -> dict[str, list[float | None]]:
        """Return the means of the last hour, the oldest first; None where nothing is known.

        Nothing before the first known stretch is given, so that a short history is a short list; nothing at all where
        no quantity is known.
        """
        newest = math.floor(now_s / STRETCH_S)
        known = {place: means for place, means in self._done if newest - place < STRETCHES}
        if self._place is not None and newest - self._place < STRETCHES:
            known[self._place] = self._means()
        known = {place: means for place, means in known.items() if any(mean is not None for mean in means)}
        if not known:
            return {}
        span = range(min(known), newest + 1)
        rows = [known.get(place) for place in span]
        return {
            name: [None if row is None or row[index] is None else _rounded(row[index], digits) for row in rows]
            for index, name in enumerate(self._names)
        }

    def _means(self) -> tuple[float | None, ...]:
        return tuple(total / count if count else None for total, count in zip(self._sums, self._counts, strict=True))


def ends_utc(now_s: float, now: datetime) -> str:
    """Return the end of the stretch that holds a moment, ISO 8601: the right end of each picture of the last hour."""
    left_s = STRETCH_S - now_s % STRETCH_S
    return (now + timedelta(seconds=left_s)).isoformat(timespec="seconds")


def _rounded(value: float | None, digits: int) -> float | None:
    """Return a number with so many digits behind its first one, as JSON is short then."""
    return None if value is None else float(f"{value:.{digits}g}")
