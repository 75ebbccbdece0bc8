"""Phases of a trial: plain training, training on a few kept batches, and drawing batches without training.

With the variable ``AUTOTUNE_PHASE_S`` the observer takes a trial through these in turn, for ever: `REPLAY` shows the
speed of the steps if data cost nothing, `LOAD` that of the loader alone, `TRAIN` that of both together. `TRAIN` comes
after `LOAD` and not after `REPLAY`, which leaves all buffers of the loader full: training would look too fast.
"""

from __future__ import annotations

import math
import os
from typing import Optional

PHASE_VARIABLE = "AUTOTUNE_PHASE_S"
"""Seconds of one phase; without it, a trial has none."""

CHUNK_VARIABLE = "AUTOTUNE_PHASE_CHUNK_S"
"""Seconds of drawing that one line reports, if not `CHUNK_S`; 0 for a line a batch."""

CHUNK_S = 0.25
"""Time of drawing that one line reports: a reader cuts off the beginning, when buffers were still full."""

REPLAY, LOAD, TRAIN = "replay", "load", "train"

LEAST = 3
"""Steps in a phase, or batches in `LOAD`; also the steps of the warm-up that are not counted to learn what trains."""

_MOST_WARM_UP = 10
_LONGEST = 4.0  # phases
_ORDER = (REPLAY, LOAD, TRAIN)


def phase_length_s() -> Optional[float]:
    """Return the seconds of one phase that the environment asks for; None if it asks for no phases."""
    try:
        length_s = float(os.environ.get(PHASE_VARIABLE, ""))
    except ValueError:
        return None
    return length_s if 0.0 < length_s < math.inf else None


def chunk_length_s() -> float:
    """Return the seconds of drawing that one line reports."""
    try:
        length_s = float(os.environ.get(CHUNK_VARIABLE, ""))
    except ValueError:
        return CHUNK_S
    return length_s if 0.0 <= length_s < math.inf else CHUNK_S


class Schedule:
    """Schedule of the phases: which one it is, and the time to change.

    A phase takes about its length, at least `LEAST` steps or batches, and at most four times its length. `LOAD` has its
    length in time of drawing alone, as far as that limit lets it.

    Attributes:
        phase: The phase; None during the warm-up.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._left_out: set[str] = set()
        self.phase: Optional[str] = None
        self._begin_s = 0.0
        self._steps = 0
        self._shortest_s = math.inf
        self._drawn = 0
        self._drawn_s = 0.0

    def step(self, now_s: float) -> bool:
        """Process the border between two steps.

        Returns:
            True if the next phase is due; `begin` begins it.
        """
        self._steps += 1
        if self.phase is None:
            return self._is_warm(now_s)
        passed_s = now_s - self._begin_s
        if self.phase == LOAD:
            return self.has_drawn_enough or passed_s >= _LONGEST * self._length_s
        if self.following == self.phase:
            return False
        return passed_s >= self._length_s * (1.0 if self._steps >= LEAST else _LONGEST)

    def _is_warm(self, now_s: float) -> bool:
        last_s, self._begin_s = now_s - self._begin_s, now_s
        if self._steps == 1:  # the first call has no step before it
            return False
        self._shortest_s = min(self._shortest_s, last_s)
        steps = self._steps - 1
        # times the shortest step of the warm-up: one that takes longer has traced or compiled something
        return steps >= _MOST_WARM_UP or (steps >= LEAST and last_s <= 2.0 * self._shortest_s)

    def begin(self, now_s: float) -> str:
        """Begin the next phase, and return it."""
        self.phase = self.following
        self._begin_s, self._steps, self._drawn, self._drawn_s = now_s, 0, 0, 0.0
        return self.phase

    @property
    def following(self) -> str:
        """Phase after the present one."""
        at = -1 if self.phase is None else _ORDER.index(self.phase)
        following = (_ORDER[(at + further) % len(_ORDER)] for further in range(1, len(_ORDER) + 1))
        return next(phase for phase in following if phase not in self._left_out)

    def drew(self, duration_s: float) -> None:
        """Add the time of one batch that was drawn in `LOAD`."""
        self._drawn += 1
        self._drawn_s += duration_s

    @property
    def has_drawn_enough(self) -> bool:
        """True if `LOAD` needs no further batches."""
        return self._drawn_s >= self._length_s * (1.0 if self._drawn >= LEAST else _LONGEST)

    def leave_out(self, phase: str) -> bool:
        """Leave out `REPLAY` or `LOAD` from now on; return True if it was not left out before."""
        is_news = phase not in self._left_out
        self._left_out.add(phase)
        return is_news
