"""Completion of steps on a device that works behind the program.

A call that makes a device work returns before the work is done: the program may be hundreds of steps ahead. A step ends
when the device has completed it. That is asked for at the boundaries of the steps that follow, and never waited for.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Optional

APART_S = 0.001
"""Least time between two markers: shorter steps share one, so that they cost what one step in a thousandth costs."""

_MOST = 4096  # markers: older ones are dropped, of a device that does not answer, or where nobody takes the steps

Step = tuple[Any, ...]
"""End of a step as the program saw it, and what else is known of it."""


class Completions:
    """Work that a device was given, marker by marker, and when it was seen to have completed it."""

    def __init__(self) -> None:
        self._pending: deque[tuple[float, Callable[[], Optional[bool]]]] = deque(maxlen=_MOST)
        # what was given until then, and when that was completed
        self._completed: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._last_s: Optional[float] = None  # end of the last step
        self._is_paused = False

    def is_due(self, now_s: float) -> bool:
        """Return whether work that is given now gets a marker of its own."""
        return not self._pending or now_s - self._pending[-1][0] >= APART_S

    def add(self, now_s: float, is_ready: Callable[[], Optional[bool]]) -> None:
        """Add a marker behind all work that was given until now.

        Args:
            is_ready: Returns at once whether the device has come past it; None where that cannot be told any more.
        """
        self._pending.append((now_s, is_ready))

    def poll(self, now_s: float) -> None:
        """Ask which markers the device has come past."""
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
        """True while the device is not known to have completed all that it was given."""
        return bool(self._pending)

    def pause(self) -> None:
        """Note that the program does something else: what is completed meanwhile tells no pace."""
        self._is_paused = True

    def ended(self, steps: list[Step]) -> list[Step]:
        """Return the first of some steps, those that are completed, each with the time at which it was.

        Steps that were seen to be completed at one time are spread evenly over the time since the one before.
        """
        done: list[Step] = []
        at_once: list[Step] = []
        at_s: Optional[float] = None
        for step in steps:
            if self._pending and step[0] >= self._pending[0][0]:
                break  # a part of its work is not completed
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
