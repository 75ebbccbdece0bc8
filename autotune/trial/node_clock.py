"""Alignment of another node's monotonic clock with this one's (Cristian's algorithm).

A file next to the step file holds our time; the process that writes the step file responds with that time and its own.
The midpoint of our times of request and response gives one offset for all its times.
"""

import contextlib
import math
from pathlib import Path

from autotune.files import replace_durably

_REQUEST_EVERY_S = 1.0

_TIMEOUT_S = 20.0
"""Time after which a process that doesn't respond is aligned by the arrival of its lines."""


class NodeClock:
    """Clock of the process that writes a step file."""

    def __init__(self, step_file: Path) -> None:
        self._request = step_file.with_name(f"{step_file.name}.clock")
        self._begin_s: float | None = None
        self._requested_s = -math.inf
        self._offset_s: float | None = None

    def offset_s(self, now_s: float | None, latest_s: float | None) -> float | None:
        """Return the offset to add to its times; None while it is requested.

        Args:
            now_s: Our time; None if the process has ended.
            latest_s: Its latest time.
        """
        if now_s is None:
            return self._offset_s or 0.0
        if self._offset_s is None:
            self._begin_s = now_s if self._begin_s is None else self._begin_s
            if latest_s is not None and now_s - self._begin_s > _TIMEOUT_S:
                self._offset_s = now_s - latest_s
            elif now_s - self._requested_s >= _REQUEST_EVERY_S:
                self._requested_s = now_s
                with contextlib.suppress(OSError):  # the folder is gone: the trainer may have removed it
                    replace_durably(self._request, f"{now_s:.6f}\n".encode())
        return self._offset_s

    def add_response(self, t_s: float, host_s: float, now_s: float | None) -> None:
        """Compute the offset from a response: its time `t_s`, and our time `host_s` in the request."""
        read_s = host_s if now_s is None else now_s
        if self._offset_s is None and host_s <= read_s:
            self._offset_s = (host_s + read_s) / 2.0 - t_s
