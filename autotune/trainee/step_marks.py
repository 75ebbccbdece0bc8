"""Marks on training steps: the phase that each moment of a step belongs to; no moment belongs to two."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER, REST = (
    "data",
    "copy",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "rest",
)

PHASES = (DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER)
"""The phases of a step, but for the rest."""

_UNSETTLED = "unsettled"  # after a forward pass: part of that if another one follows, else of the loss
_HAVE_NO_PARTS = (DATA, FORWARD, LOSS, BACKWARD)  # a backward pass computes forward passes again to save memory
_PARTS = (DATA, COPY, FORWARD, LOSS)


class Mark(NamedTuple):
    """Moment at which a phase begins.

    Attributes:
        at: The moment, as the clock gives it: a number, or an event of an accelerator.
        phase: The phase.
    """

    at: Any
    phase: str


class MarkedStep(NamedTuple):
    """Marks of one step.

    Attributes:
        marks: Its phases in their order.
        end: The moment of its end.
    """

    marks: list[Mark]
    end: Any

    def times_ms(self, elapsed_ms: Callable[[Any, Any], float]) -> dict[str, float]:
        """Return the time of each phase.

        Args:
            elapsed_ms: Returns the milliseconds between two moments.
        """
        times_ms = dict.fromkeys((*PHASES, REST), 0.0)
        ends = [*(mark.at for mark in self.marks[1:]), self.end]
        for mark, end in zip(self.marks, ends):  # noqa: B905 -- Python 3.9 has no strict
            times_ms[REST if mark.phase == _UNSETTLED else mark.phase] += elapsed_ms(mark.at, end)
        return times_ms


class StepMarks:
    """Marks on the steps of one thread.

    Phases lie within one another: a closure that an optimizer calls has a forward and a backward pass. A moment belongs
    to the innermost, except that passes within a pass are part of it.

    Args:
        now: Returns the present moment.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self._now = now
        self._phases: list[str] = []  # within one another
        self._unsettled_at: Optional[int] = None  # number of phases around a forward pass whose backward is to come
        self._marks = [Mark(now(), REST)]

    def begin(self, phase: str) -> int:
        """Begin a phase within the present one.

        Returns:
            What ends it.
        """
        depth = len(self._phases)
        around = self._phases[-1] if depth else REST
        if phase in _PARTS and around in _HAVE_NO_PARTS:
            phase = around
        self._phases.append(phase)
        if phase == BACKWARD:
            self._settle()
        self._mark(phase)
        return depth

    def end(self, depth: int) -> None:
        """End a phase, and those within it that an exception has ended."""
        ended = self._phases[depth] if depth < len(self._phases) else REST
        del self._phases[depth:]
        if ended in (FORWARD, LOSS) and (not depth or self._phases[-1] == OPTIMIZER):
            self._unsettled_at = depth
        self._mark(self._present)

    def cancel(self, depth: int) -> None:
        """Forget a copy that has just begun, and was none."""
        del self._phases[depth:]
        del self._marks[-1]

    @property
    def is_between(self) -> bool:
        """True if a copy would not be part of another phase."""
        return not self._phases or self._phases[-1] == OPTIMIZER

    def cut(self) -> MarkedStep:
        """End a step and begin the next one; return the marks of that which has ended."""
        self._phases.clear()
        self._unsettled_at = None
        now = self._now()
        step = MarkedStep(self._marks, now)
        self._marks = [Mark(now, REST)]
        return step

    @property
    def _present(self) -> str:
        if self._unsettled_at == len(self._phases):
            return _UNSETTLED
        return self._phases[-1] if self._phases else REST

    def _mark(self, phase: str) -> None:
        if phase != self._marks[-1].phase:
            self._marks.append(Mark(self._now(), phase))

    def _settle(self) -> None:
        """Say of the times between forward passes and this backward pass what they belong to."""
        self._unsettled_at = None
        last = max((number for number, mark in enumerate(self._marks) if mark.phase == FORWARD), default=-1)
        self._marks = [
            Mark(mark.at, FORWARD if number < last else LOSS) if mark.phase == _UNSETTLED else mark
            for number, mark in enumerate(self._marks)
        ]
