"""Completion of steps on a device that runs behind the program, polled at step boundaries and never waited for."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Optional

APART_S = 0.001
"""Least time between two markers; shorter steps share one, which bounds the cost per second."""

_MOST = 4096  # markers; older ones are dropped if the device doesn't answer, or if the steps are never taken

Step = tuple[Any, ...]
"""End of a step as the program saw it, then its other fields."""


class Completions:
    """Markers in a device's work, and when they were seen passed."""

    def __init__(self) -> None:
        self._pending: deque[tuple[float, Callable[[], Optional[bool]]]] = deque(maxlen=_MOST)
        # time at which the work was given, time at which it was seen completed
        self._completed: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._last_s: Optional[float] = None  # end of the last step
        self._is_paused = False

    def is_due(self, now_s: float) -> bool:
        return not self._pending or now_s - self._pending[-1][0] >= APART_S

    def add(self, now_s: float, is_ready: Callable[[], Optional[bool]]) -> None:
        """Add a marker after all work given so far.

        Args:
            is_ready: Returns at once whether the device has passed it; None if no longer known.
        """
        self._pending.append((now_s, is_ready))

    def poll(self, now_s: float) -> None:
        pending = self._pending
        while pending:
            given_s, is_ready = pending[0]
            state = is_ready()
            if state is False:
                return
            pending.popleft()
            if state is not None:
                self._completed.append((given_s, now_s))

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def pause(self) -> None:
        """Record a pause: work completed during it says nothing about speed."""
        self._is_paused = True

    def ended(self, steps: list[Step]) -> list[Step]:
        """Return the leading completed steps with their times of completion.

        Those seen together are spread evenly over the time since the previous one.
        """
        done: list[Step] = []
        at_once: list[Step] = []
        at_s: Optional[float] = None
        for step in steps:
            if self._pending and step[0] >= self._pending[0][0]:
                break  # part of its work is not completed
            while self._completed and self._completed[0][0] <= step[0]:
                _, seen_s = self._completed.popleft()
                if seen_s != at_s:
                    self._spread(at_once, at_s, done)
                at_s = seen_s
            at_once.append(step)
        self._spread(at_once, at_s, done)
        return done

    def _spread(self, steps: list[Step], until_s: Optional[float], done: list[Step]) -> None:
        if until_s is None or not steps:
            done += steps
            steps.clear()
            return
        since_s = until_s if self._is_paused else steps[0][0] if self._last_s is None else self._last_s
        for place, step in enumerate(steps, start=1):
            done.append((max(step[0], since_s + (until_s - since_s) * place / len(steps)), *step[1:]))
        self._last_s, self._is_paused = done[-1][0], False
        steps.clear()
