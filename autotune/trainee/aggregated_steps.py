"""Steps whose fetches run outside Python: only sums of them are known, and those are read at intervals."""

from __future__ import annotations

from typing import Callable, Optional

from autotune.trainee.report import Report

READ_EVERY_S = 0.2
"""Least interval between two readings of the sums; one takes about 0.1 ms.

A longer step gets its own data wait and samples; shorter ones share the mean of the steps between two readings.
"""

Sums = tuple[float, float, float]
"""Seconds of waiting for data, number of samples, number of batches."""


class AggregatedSteps:
    """Reported steps, made from step ends and from sums over the fetches between them.

    Args:
        report: Receives the steps.

    Attributes:
        counters: Each returns the sums since its last call.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.counters: list[Callable[[], Sums]] = []
        self.forget()

    def forget(self) -> None:
        """Drop all state in a forked child, where it is the parent's."""
        self._ends_s: list[float] = []
        self._ending_s: Optional[float] = None  # end of a step whose callbacks are called now
        self._is_taken = False  # whether that was reported meanwhile
        self._last_s: Optional[float] = None  # end of the last step that was reported, or of a pause since
        self._read_s = 0.0
        self._sums: Sums = (0.0, 0.0, 0.0)
        self._is_first = True

    def add(self, wait_s: float, samples: Optional[float]) -> None:
        """Add a fetch that was observed in Python."""
        self._sums = (self._sums[0] + wait_s, self._sums[1] + (samples or 0.0), self._sums[2] + 1.0)

    def ending(self, t_s: float) -> None:
        """Note the end of a step whose callbacks are about to be called: a pause in them comes after it."""
        self._ending_s, self._is_taken = t_s, False

    def ended(self, t_s: float) -> None:
        """Add the end of a step, or of one execution of several steps, unless a pause in its callbacks did."""
        was_taken, self._ending_s, self._is_taken = self._is_taken, None, False
        if was_taken:
            return
        self._ends_s.append(t_s)
        # The first is held back until the second: the trainer may report its steps itself.
        if t_s - self._read_s >= READ_EVERY_S and not (self._is_first and len(self._ends_s) == 1):
            self.flush()

    def flush(self) -> None:
        """Report the steps that have ended."""
        if self._ending_s is not None and not self._is_first:
            self._ends_s.append(self._ending_s)
            self._ending_s, self._is_taken = None, True
        ends_s, self._ends_s = self._ends_s, []
        if not ends_s:
            return
        self._is_first = False
        self._read_s = ends_s[-1]
        wait_s, samples, batches = self._take()
        count = max(round(batches), len(ends_s))
        if count > len(ends_s):
            self._report.note("several steps are executed as one: their times, waits and samples are means")
        are_seen = batches >= len(ends_s)  # all of their fetches
        wait = wait_s / batches if are_seen else None
        share = samples / batches if are_seen and samples else None
        for number, end_s in enumerate(ends_s):
            begin_s = end_s if self._last_s is None else self._last_s
            in_one = (number + 1) * count // len(ends_s) - number * count // len(ends_s)
            for part in range(1, in_one + 1):
                self._report.step(begin_s + (end_s - begin_s) * part / in_one, wait, share)
            self._last_s = end_s
        self._report.flush()

    def skip(self, now_s: float) -> None:
        """Discard the fetches and the time since the last step, as those of a pause without training."""
        self._take()
        if self._last_s is not None:
            self._last_s = now_s

    def _take(self) -> Sums:
        wait_s, samples, batches = self._sums
        self._sums = (0.0, 0.0, 0.0)
        for counter in self.counters:
            more = counter()
            wait_s, samples, batches = wait_s + more[0], samples + more[1], batches + more[2]
        return wait_s, samples, batches
