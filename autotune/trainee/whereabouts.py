"""Lines of the trainer's own code that its loop stays in, sampled in the trial of a diagnosis that watches it.

A step that takes much longer than others tells how long, and not where. So a thread looks now and then which line of
the trainer's own the main thread is in, or has called a library from, and reports each stay of some length as a
``cost`` of the kind ``stay``, with its seconds. Steps that are usual hardly make one.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Optional

from autotune.trainee.costs import is_own
from autotune.trainee.stream import process_stream

_EVERY_S = 0.01  # of one core: 0.1 %
_LEAST_S = 0.03  # a stay of fewer looks is none
_MOST_S = 1.0  # after which a stay is told of in parts: the trial may end meanwhile


class Whereabouts(threading.Thread):
    """Thread that looks where the main thread is."""

    def __init__(self) -> None:
        super().__init__(name="autotune-whereabouts", daemon=True)
        self._main = threading.main_thread().ident

    def run(self) -> None:
        place, since_s = None, time.monotonic()
        while True:
            time.sleep(_EVERY_S)
            now_s, here = time.monotonic(), self._place()
            if here == place and now_s - since_s < _MOST_S:
                continue
            if place is not None and now_s - since_s >= _LEAST_S:
                process_stream.write("cost", now_s, cost="stay", place=place, duration_s=now_s - since_s, times=1)
            place, since_s = here, now_s

    def _place(self) -> Optional[str]:
        """Return the line of the trainer's own that the main thread is in; None before its first steps, or without.

        Until then the stream's file is closed: a trainer may look at its descriptors, or close all.
        """
        if not process_stream.has_steps:
            return None
        frame: Any = sys._current_frames().get(self._main or 0)
        while frame is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return frame and f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
