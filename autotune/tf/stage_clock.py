"""Clock of one stage of a pipeline."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from autotune.stage_times import StageTimes


class StageClock:
    """Clock of one stage; written by the stage's own thread, read by anybody.

    Its attributes are those of `StageTimes`.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.busy_s = 0.0
        self.input_s = 0.0
        self.room_s = 0.0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count what is inside as work."""
        started_s = time.monotonic()
        yield
        self.busy_s += time.monotonic() - started_s

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Count what is inside as waiting for the stage before."""
        started_s = time.monotonic()
        yield
        self.input_s += time.monotonic() - started_s

    @contextmanager
    def waiting_for_room(self) -> Iterator[None]:
        """Count what is inside as waiting for the stage after."""
        started_s = time.monotonic()
        yield
        self.room_s += time.monotonic() - started_s

    def times(self) -> StageTimes:
        """Return the times so far."""
        return StageTimes(batches=self.batches, busy_s=self.busy_s, input_s=self.input_s, room_s=self.room_s)
