"""What the observer writes into the stream: several steps at once, so that a short step does not pay for a write."""

from __future__ import annotations

import json
import time
from typing import Any, Optional

from autotune.trainee.stream import OBSERVER, Stream, json_number

LOSS_EVERY_S = 0.5

_NOTE_CHARS = 500


class Report:
    """The observer's part of the stream; reports no steps any more once the trainer does so itself.

    Args:
        stream: The file of this process.

    Attributes:
        loss_due_s: When to look at the loss again.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._noted: set[str] = set()
        self.loss_due_s = 0.0
        self.forget()

    def forget(self) -> None:
        """In a forked child: what is held back is the parent's."""
        self._lines: list[str] = []
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
        line = f'{{"k": "step", "t_s": {t_s:.6f}'
        if wait_s is not None:
            line += f', "wait_s": {wait_s:.6f}'
        if samples is not None:
            line += f', "samples": {samples}'
        if self._loss is not None:
            line += f', "loss": {json_number(self._loss)}'
            self._loss = None
        self._lines.append(line + "}")

    def flush(self) -> None:
        """Writes what is held back."""
        lines, self._lines = self._lines, []
        if lines and self._stream.is_observed:
            self._stream.write("\n".join(lines))

    def loss(self, now_s: float, value: Any) -> None:
        """Takes a loss that was to be had without waiting for the accelerator; goes out with the next step."""
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
