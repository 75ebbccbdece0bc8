"""What the observer writes into the stream: several steps at once, so that a short step does not pay for a write."""

from __future__ import annotations

import json
import time
from typing import Any, Optional

from autotune.trainee.stream import OBSERVER, Stream, json_number

LOSS_EVERY_S = 0.5

_NOTE_CHARS = 500
# Nearly all steps, in one call: the lines are most of what a step costs after it was seen.
_STEP = '{"k": "step", "t_s": %.6f, "wait_s": %.6f, "samples": %s}'


class Report:
    """The observer's part of the stream; reports no steps any more once the trainer does so itself.

    Args:
        stream: The file of this process.

    Attributes:
        loss_due_s: When to look at the loss again.
        held: The steps that go out with the next `flush`: when each ended; how long the loop waited for its batch, and
            samples in that, where known.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._noted: set[str] = set()
        self.loss_due_s = 0.0
        self.forget()

    def forget(self) -> None:
        """In a forked child: what is held back is the parent's."""
        self.held: list[tuple[float, Optional[float], Optional[float]]] = []
        self._loss: Any = None

    @property
    def is_ours(self) -> bool:
        """Whether the steps of this process are the observer's to report."""
        return self._stream.source in (None, OBSERVER)

    def step(self, t_s: float, wait_s: Optional[float], samples: Optional[float]) -> None:
        """Reports a step, at the next `flush`.

        Args:
            t_s: When it ended.
            wait_s: How long the loop waited for its batch; None if not known.
            samples: Samples in its batch; None if not known.
        """
        self.held.append((t_s, wait_s, samples))

    def flush(self) -> None:
        """Writes what is held back."""
        held = self.held[:]
        del self.held[: len(held)]  # the list stays: whoever is adding to it goes on
        if not held or not self._stream.is_observed:
            return
        lines = [_STEP % step if None not in step else _line(*step) for step in held]
        if self._loss is not None:
            lines[-1] = f'{lines[-1][:-1]}, "loss": {json_number(self._loss)}}}'
            self._loss = None
        self._stream.write("\n".join(lines))

    def loss(self, now_s: float, value: Any) -> None:
        """Takes a loss that was to be had without waiting for the accelerator; goes out with the next steps."""
        self.loss_due_s = now_s + LOSS_EVERY_S
        self._loss = value

    def mark(self, kind: str, t_s: float, duration_s: Optional[float] = None) -> None:
        """Reports something else that has ended; pauses are of use to a trainer that reports its own steps, too."""
        self.flush()
        if self._stream.is_observed or kind in ("eval", "checkpoint"):
            length = "" if duration_s is None else f', "duration_s": {duration_s:.6f}'
            self._stream.write(f'{{"k": "{kind}", "t_s": {t_s:.6f}{length}}}')

    def note(self, text: str) -> None:
        """Says something to people, once."""
        if text not in self._noted and self._stream.is_observed:
            self._noted.add(text)
            line = {"k": "note", "t_s": round(time.monotonic(), 6), "text": text[:_NOTE_CHARS]}
            self._stream.write(json.dumps(line))


def _line(t_s: float, wait_s: Optional[float], samples: Optional[float]) -> str:
    """A step of which not all is known."""
    wait = "" if wait_s is None else f', "wait_s": {wait_s:.6f}'
    held = "" if samples is None else f', "samples": {samples}'
    return f'{{"k": "step", "t_s": {t_s:.6f}{wait}{held}}}'
