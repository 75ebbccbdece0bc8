"""Monotonic clock of another node, aligned with this one's by question and answer.

Monotonic clocks begin when a machine starts, so that times of two nodes cannot be compared. The question is a file
beside the step file, with our time in it; the process that writes the step file answers with the time of ours that it
has read and its own. It answered between then and the moment at which the answer is read here, and the middle of these
is taken. All times of that process are moved alike: the time between two of its steps stays what it measured.
"""

import contextlib
import math
from pathlib import Path

from autotune.files import replace_durably

_ASKS_EVERY_S = 1.0

_PATIENCE_S = 20.0
"""Time after which a process that does not answer is aligned by the moment at which its lines arrive."""


class NodeClock:
    """Clock of the process that writes a step file.

    Args:
        step_file: The step file.
    """

    def __init__(self, step_file: Path) -> None:
        self._question = step_file.with_name(f"{step_file.name}.clock")
        self._begin_s: float | None = None
        self._asked_s = -math.inf
        self._offset_s: float | None = None

    def offset_s(self, now_s: float | None, latest_s: float | None) -> float | None:
        """Return what its times are to be moved by; asks for it, and returns None until that is known.

        Args:
            now_s: Our time; None where nobody writes any more, and nobody is asked.
            latest_s: Its latest time; None before the first.
        """
        if now_s is None:
            return self._offset_s or 0.0
        if self._offset_s is None:
            self._begin_s = now_s if self._begin_s is None else self._begin_s
            if latest_s is not None and now_s - self._begin_s > _PATIENCE_S:
                self._offset_s = now_s - latest_s
            elif now_s - self._asked_s >= _ASKS_EVERY_S:
                self._asked_s = now_s
                with contextlib.suppress(OSError):  # the folder is gone: the trainer may have removed it
                    replace_durably(self._question, f"{now_s:.6f}\n".encode())
        return self._offset_s

    def answered(self, t_s: float, host_s: float, now_s: float | None) -> None:
        """Take an answer.

        Args:
            t_s: Its time when it answered.
            host_s: Our time in the question that it has read.
            now_s: Our time.
        """
        read_s = host_s if now_s is None else now_s
        if self._offset_s is None and host_s <= read_s:
            self._offset_s = (host_s + read_s) / 2.0 - t_s
