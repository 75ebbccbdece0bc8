"""Report of observed steps into the stream, several at a time: a short step must not pay for a write."""

from __future__ import annotations

import math
import os
import weakref
from typing import Any, Callable, Generic, Optional, TypeVar

from autotune.trainee.stream import OBSERVER, Stream, is_only_watched, json_number, line_of

EACH_LOSS_VARIABLE = "AUTOTUNE_EACH_LOSS"
"""Variable of a trial in which the loss of each step is wanted, where that does not wait for an accelerator."""

# Nearly all steps are formatted in one call: it is most of the cost of a step after its observation.
_STEP = '{"k": "step", "t_s": %.6f, "wait_s": %.6f, "samples": %s}'


class Report:
    """Observer's part of the stream; reports no more steps once the trainer reports its own.

    Attributes:
        loss_due_s: Monotonic time from which the loss is read again; never in a training that is only watched.
        held: Steps of the next `flush`: end of each, how long the loop waited for its batch, and samples in that, where
            known; then False where the optimizer's update is not part of it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._noted: set[str] = set()
        self.loss_due_s = math.inf if is_only_watched() else 0.0
        self.held: list[tuple[Any, ...]] = []
        self._losses: list[Any] = []

    def forget(self) -> None:
        """Drop the held steps in a forked child, where they are the parent's."""
        self.held.clear()
        self._losses.clear()

    @property
    def is_ours(self) -> bool:
        """True while the observer, not the trainer, reports the steps of this process."""
        return self._stream.source in (None, OBSERVER)

    @property
    def has_begun(self) -> bool:
        """True once this process has a stream; one that makes no steps may never have one."""
        return self._stream.source is not None

    def flush(self) -> None:
        """Write the held steps."""
        held = self.held[:]
        del self.held[: len(held)]  # the list stays: whoever is adding to it goes on
        if not held or not self._stream.is_observed:
            return
        if self._stream.pace is not None:
            for t_s, wait_s, samples, *update in held:
                self._stream.pace.step(t_s, wait_s, samples, None, not update)
            return
        lines = [_STEP % step if len(step) == 3 and None not in step else _line(*step) for step in held]
        if self._losses:
            lines[-1] = f'{lines[-1][:-1]}, "loss": {json_number(_mean(self._losses))}}}'
            self._losses.clear()
        self._stream.write_steps("\n".join(lines))

    def loss(self, now_s: float, value: Any) -> None:
        """Add a loss that could be read without waiting for the accelerator; it is written with the next steps.

        Of several, their mean is written.
        """
        if self._stream.pace is None:
            # Looked up late: a forked child's environment is not its parent's.
            self.loss_due_s = now_s + (0.0 if EACH_LOSS_VARIABLE in os.environ else 0.5)
            if value is not None:
                self._losses.append(value)

    def mark(self, kind: str, t_s: float, duration_s: Optional[float] = None, loss: Any = None) -> None:
        """Report an event other than a step; pauses are useful to a trainer that reports its own steps, too.

        Args:
            duration_s: How long it took; None if unknown.
            loss: Of an evaluation, the loss that it found; None if unknown.
        """
        self.flush()
        if self._stream.pace is not None:
            self._stream.pace.mark(kind)
        elif self._stream.is_observed or kind in ("eval", "checkpoint"):
            self._stream.write(kind, t_s, duration_s=duration_s, loss=loss)

    def note(self, text: str) -> None:
        """Write a note for people, each text once."""
        if text not in self._noted and self._stream.is_observed:
            self._noted.add(text)
            self._stream.write("note", text=text[:500])

    def unseen(self, text: str) -> None:
        """Report that the loop trains from now on, and why none of its steps can be seen."""
        if self._stream.is_observed:
            self._stream.write("unseen", text=text)

    def line(self, kind: str, t_s: float, **fields: object) -> None:
        """Write a line of its own, also where the trainer reports its steps itself; stream.py describes the fields."""
        self.flush()
        if self._stream.is_observed or self._stream.is_open:
            self._stream.write(kind, t_s, **fields)


def _mean(losses: list[Any]) -> Any:
    """Return the mean of some losses; what is no number stays so."""
    if len(losses) == 1:
        return losses[0]
    try:
        return math.fsum(map(float, losses)) / len(losses)
    except Exception:
        return None


def _line(t_s: float, wait_s: Optional[float], samples: Optional[float], is_update: bool = True) -> str:
    """Format a step of which not every field is known, or without an update."""
    wait_s = None if wait_s is None else round(wait_s, 6)
    return line_of("step", t_s, wait_s=wait_s, samples=samples, update=None if is_update else False)


Record = TypeVar("Record")


class Memory(Generic[Record]):
    """Record of each object, by weak reference; an id may be reused by another object later."""

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._known: dict[int, tuple[Callable[[], object], Record]] = {}

    def of(self, thing: object) -> Record:
        """Return the record of this object.

        Raises:
            TypeError: The object does not support weak references.
        """
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        if len(self._known) >= 1000:  # remembered; a trainer that makes a new dataset for each pass makes many
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        record = self._make()
        self._known[id(thing)] = (weakref.ref(thing), record)
        return record
