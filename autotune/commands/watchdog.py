"""The end of a command whose main thread hangs: in a driver call, on a network disk, in an endless loop."""

import contextlib
import faulthandler
import math
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from autotune.clock import Clock

LATE_S = 1.5
"""Time after the end of the budget, when the process is ended by force; it is gone half a second later."""

_PACKAGE = Path(__file__).parents[1]


def where_it_is() -> str:
    """Return where the main thread of this process is, for people: the innermost function of autotune's own."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "in code that is not autotune's"
    place = Path(frame.f_code.co_filename).relative_to(_PACKAGE.parent)
    return f"in {frame.f_code.co_name} ({place}, line {frame.f_lineno})"


class Watchdog:
    """Ends this process if it is still at work some time after its budget; a context for that work.

    What guards the trials sees the process go, and ends them.

    Args:
        ends_s: When the budget ends, on the clock's monotonic time; infinity for never.
        end: Says what there is to say, in a thread of its own, and returns the exit code.
    """

    def __init__(self, ends_s: float, end: Callable[[], int], clock: Clock) -> None:
        self._left_s = ends_s - clock.now_s()
        self._end = end
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        if math.isfinite(self._left_s):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
            # A thread of C, if there is room for one and stderr is a file: it ends the process also if a call holds
            # the interpreter's lock.
            with contextlib.suppress(AttributeError, OSError, ValueError, OverflowError, RuntimeError):
                # after the end of the budget, also where no other thread of Python gets a turn
                last_s = max(0.1, self._left_s + 4.0)
                faulthandler.dump_traceback_later(last_s, exit=True, file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stand_down()

    def stand_down(self) -> None:
        """Lets the process take its time from now on: what it was to answer is answered, or about to be."""
        self._is_over.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        if self._is_over.wait(min(max(0.0, self._left_s + LATE_S), threading.TIMEOUT_MAX)):
            return
        code = 1
        try:
            code = self._end()
        finally:
            os._exit(code)
