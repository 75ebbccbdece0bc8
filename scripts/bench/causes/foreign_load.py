"""Load of the machine by others than the benchmark, measured apart from what a diagnosis says of it."""

import os
from collections.abc import Callable

from autotune.clock import Clock

CALM_CORES = 0.3
"""Cores that others may use without a verdict about the trainer being doubtful."""

_LOOK_S = 3.0


class ForeignLoad:
    """Cores that others keep busy.

    Args:
        clock: The machine's clock.
        busy_s: Returns the CPU time of all processes; None where that is not known.
    """

    def __init__(self, clock: Clock, busy_s: Callable[[], float | None]) -> None:
        self._clock = clock
        self._busy_s = busy_s
        self._begin = self._reading()

    def begin(self) -> None:
        """Begin a stretch of time."""
        self._begin = self._reading()

    def cores(self) -> float:
        """Return the cores that others kept busy since `begin`, 0 if that is not known.

        Children of this process count as its own once they have ended and were waited for.
        """
        t_s, busy_s, own_s = self._reading()
        begin_s, busy_begin_s, own_begin_s = self._begin
        if busy_s is None or busy_begin_s is None or t_s <= begin_s:
            return 0.0
        return max(0.0, (busy_s - busy_begin_s - (own_s - own_begin_s)) / (t_s - begin_s))

    def wait_for_calm(self, limit_s: float) -> bool:
        """Wait until others leave the machine alone; return False if they did not within the limit."""
        ends_s = self._clock.now_s() + limit_s
        while True:
            self.begin()
            self._clock.wait(_LOOK_S)
            if self.cores() < CALM_CORES:
                return True
            if self._clock.now_s() >= ends_s:
                return False

    def _reading(self) -> tuple[float, float | None, float]:
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return self._clock.now_s(), self._busy_s(), own_s
