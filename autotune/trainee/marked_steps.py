"""Profile of steps by marks, made in the trainer's process while it trains: stretches with marks and without, in turn.

A step is what lies between two borders: a border is the first fetch after an update or, where no fetch is seen in the
thread that trains, the end of a step of the optimizer that makes the fewest. So the batches whose gradients are
accumulated make one step, and so do the updates of several optimizers on one batch.

The stretches without marks tell how long a step takes when nobody looks at its parts. Steps with a checkpoint or the
begin of a pass over data in them do not count.
"""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Optional

from autotune.trainee.step_marks import REST, MarkedStep, StepMarks

_LEAST_STEPS, _LEAST_S = 20, 4.0  # of training before the first stretch
_FEW_STEPS, _LONG_S = 4, 30.0  # of it, where steps are long
_STRETCHES = 12  # of either kind
_STEPS, _MOST_STEPS, _STRETCH_S = 6, 60, 0.75  # of a stretch
_LONG_STRETCH_S, _FEWEST_STEPS = 5.0, 2  # of it, where steps are long
_LONGEST_S = 150.0
_RAREST = 10  # steps of another optimizer for one of an optimizer that makes an end of a step
_LEAST_MARKED = 5


class Clock(NamedTuple):
    """Clock of the device that a step runs on.

    Attributes:
        device: The device.
        now: Returns the present moment.
        elapsed_ms: Returns the milliseconds between two moments, once `wait` has returned.
        wait: Waits for the device.
    """

    device: str
    now: Callable[[], Any]
    elapsed_ms: Callable[[Any, Any], float]
    wait: Callable[[], object]


HOST_CLOCK = Clock("CPU", time.perf_counter, lambda begin, end: 1000 * (end - begin), lambda: None)
"""Clock of a step that is over when its functions return."""


class Borders:
    """Borders between the steps of a training."""

    def __init__(self) -> None:
        self._updates: dict[int, int] = {}  # of each optimizer, the one that made the last update last
        self._is_updated = False
        self._at_fetches = 0
        self._border_optimizer: Optional[int] = None

    @property
    def steps(self) -> int:
        """Number of steps so far, about."""
        return max(self._updates.values(), default=0)

    def settle(self) -> None:
        """Decide between fetches and updates, after some steps."""
        regular = [one for one in reversed(self._updates) if self._updates[one] * _RAREST >= self.steps]
        fewest = min(regular, key=self._updates.__getitem__)
        self._border_optimizer = None if 2 * self._at_fetches > self._updates[fewest] else fewest

    def updated(self, optimizer: Optional[int]) -> bool:
        """Process an update; return True if a step is over.

        Args:
            optimizer: Which; None for one that was skipped.
        """
        self._is_updated = True
        if optimizer is not None:
            self._updates[optimizer] = self._updates.pop(optimizer, 0) + 1
        return optimizer is not None and optimizer == self._border_optimizer

    def fetches(self) -> bool:
        """Process the begin of a fetch; return True if a step is over."""
        was_updated, self._is_updated = self._is_updated, False
        self._at_fetches += was_updated
        return was_updated and self._border_optimizer is None


class MarkedSteps:
    """Steps of a training, some with marks.

    Args:
        clock: Returns the clock to use, at the first stretch.
        mark: Called with True to have the step's phases marked, and with False for that to end.
        finished: Called with the result.
    """

    def __init__(
        self,
        clock: Callable[[], Clock],
        mark: Callable[[bool], object],
        finished: Callable[[dict[str, Any]], object],
    ) -> None:
        self._make_clock = clock
        self._switch_marks = mark
        self._finished = finished
        self._clock = HOST_CLOCK
        self._borders = Borders()
        self._begin_s = time.monotonic()
        self._held: list[tuple[float, float]] = []
        self._stretch_s = 0.0  # its begin
        self._stretch: list[Any] = []  # its steps
        self._marked: list[list[MarkedStep]] = []
        self._plain: list[list[MarkedStep]] = []
        self._is_disturbed = True
        self._fetches = self._all_fetches = self._all_steps = 0
        self.marks: Optional[StepMarks] = None
        self.is_marking = False
        self.is_over = False

    def updated(self, optimizer: Optional[int]) -> None:
        """Process an update of an optimizer; None for one that was skipped."""
        if self._borders.updated(optimizer):
            self._border()
        elif self.marks is None and self._is_warm():
            self._borders.settle()
            self._clock = self._make_clock()
            self.marks = StepMarks(self._clock.now)
            self._begin_s = time.monotonic()

    def fetches(self) -> None:
        """Process the begin of a fetch."""
        if self._borders.fetches():
            self._border()
        self._fetches += 1

    def disturbed(self) -> None:
        """Leave out the present step."""
        self._is_disturbed = True

    def _is_warm(self) -> bool:
        steps, passed_s = self._borders.steps, time.monotonic() - self._begin_s
        return (steps >= _LEAST_STEPS and passed_s >= _LEAST_S) or (steps >= _FEW_STEPS and passed_s >= _LONG_S)

    def _border(self) -> None:
        if self.marks is None:
            return
        step, fetches = self.marks.cut(), self._fetches
        is_first, self._fetches = not self._stretch_s, 0
        self._stretch_s = self._stretch_s or time.monotonic()
        if not self._is_disturbed and not is_first:
            self._stretch.append(step)
            self._all_fetches += fetches
            self._all_steps += 1
        self._is_disturbed = False
        steps, passed_s = len(self._stretch), time.monotonic() - self._stretch_s
        is_long = steps >= _FEWEST_STEPS and passed_s >= _LONG_STRETCH_S
        if steps >= _MOST_STEPS or (steps >= _STEPS and passed_s >= _STRETCH_S) or is_long:
            self._next_stretch()
        elif time.monotonic() > self._begin_s + _LONGEST_S:
            self._end()

    def _next_stretch(self) -> None:
        """End a stretch; the first step of the next one does not count, since it begins with the change."""
        (self._marked if self.is_marking else self._plain).append(self._stretch)
        self._stretch = []
        if self.is_marking:
            self._held.append((self._stretch_s, time.monotonic()))
        self._stretch_s = 0.0
        if len(self._marked) == _STRETCHES or time.monotonic() > self._begin_s + _LONGEST_S:
            self._end()
            return
        self.is_marking = not self.is_marking
        self._switch_marks(self.is_marking)

    def _end(self) -> None:
        self.is_over = True
        if self.is_marking:
            self.is_marking = False
            self._switch_marks(False)
        self._clock.wait()
        self._finished(self._result())

    def _result(self) -> dict[str, Any]:
        elapsed_ms = self._clock.elapsed_ms
        marked = [step.times_ms(elapsed_ms) for stretch in self._marked for step in stretch]
        plain_ms = [sum(step.times_ms(elapsed_ms).values()) for stretch in self._plain for step in stretch]
        if min(len(marked), len(plain_ms)) < _LEAST_MARKED:
            return {"error": "too few steps without a checkpoint or the begin of a pass over data"}
        phases = [name for name in marked[0] if name == REST or any(times_ms[name] for times_ms in marked)]
        return {
            "device": self._clock.device,
            "held": self._held,
            "marked_ms": {name: [round(times_ms[name], 4) for times_ms in marked] for name in phases},
            "plain_ms": [round(time_ms, 4) for time_ms in plain_ms],
            "batches_a_step": round(self._all_fetches / self._all_steps, 3),
        }
