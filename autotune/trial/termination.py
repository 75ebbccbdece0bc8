"""Handling of SIGINT (^C) and SIGTERM: the first is raised as an exception for an orderly end, later ones are ignored.

The signal table is per process, so the state here is global. Handlers are functions, never "ignore", because ignored
signals stay ignored in every program that is started.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.clock import SystemClock
from autotune.errors import Terminated

INSISTING_S = 5.0
"""Time after the first signal from which on another one ends the process by force: the orderly end hangs."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class _Received:
    """State of the signals that this process has received.

    Attributes:
        interrupt: The exception for the first signal; None before that.
        is_lost: Whether it was raised where nothing can be: in a finalizer, or the callback of a weak reference.
        holds: Number of `signals_held` blocks that are active.
        by_force: Called before the process is ended by force.
    """

    interrupt: KeyboardInterrupt | None = None
    first_s = 0.0
    is_pending = False
    is_lost = False
    holds = 0
    by_force: Callable[[KeyboardInterrupt], object] | None = None


_received = _Received()
_clock = SystemClock()


def take_signals() -> None:
    """Install handlers: the first SIGINT raises KeyboardInterrupt, the first SIGTERM `Terminated`.

    A signal that is ignored already stays ignored.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _hear)
    sys.unraisablehook = _take_unraised


def end_by_force_with(by_force: Callable[[KeyboardInterrupt], object]) -> None:
    """Set the function to call before the process is ended by force, because of a later signal."""
    _received.by_force = by_force


def interrupted_by() -> KeyboardInterrupt | None:
    """Return the exception that ended this process, or is about to; None if there is none."""
    return _received.interrupt


@contextmanager
def signals_held() -> Iterator[None]:
    """Defer signals in this block: for work that must not be interrupted, and for imports, which may lose exceptions.

    Only the main thread gets signals; in another thread nothing is deferred.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received.holds += 1
    try:
        yield
    finally:
        _received.holds -= 1
        if _received.is_pending and not _received.holds:
            _raise()


def ignore_signals() -> None:
    """Ignore signals from now on; to be called at the very end, when nothing is left to interrupt."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def release_signals() -> None:
    """Restore the default handlers of signals, for the program that this process executes next."""
    for number in _NUMBERS:
        if signal.getsignal(number) is _hear:
            signal.signal(number, signal.SIG_DFL)


def _hear(number: int, frame: FrameType | None) -> None:
    if _received.is_lost:
        if _is_in_hook(frame):
            _signal_later()
            return
        _received.is_lost = False
        _raise()
    if _received.interrupt is not None:
        if _clock.now_s() - _received.first_s >= INSISTING_S:
            _end_by_force(number, _received.interrupt)
        return
    _received.interrupt = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
    _received.first_s = _clock.now_s()
    _received.is_pending = True
    if not _received.holds:
        _raise()


def _raise() -> None:
    assert _received.interrupt is not None
    _received.is_pending = False
    raise _received.interrupt


def _take_unraised(error: "sys.UnraisableHookArgs") -> None:
    """Raise the interrupt again where it was lost, a moment later; other errors are said as ever."""
    if error.exc_value is None or error.exc_value is not _received.interrupt:
        sys.__unraisablehook__(error)
        return
    _received.is_lost = True
    _signal_later()


def _signal_later() -> None:
    # by then the finalizer has mostly ended in which the interrupt was lost; otherwise it is lost and raised again
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()


def _is_in_hook(frame: FrameType | None) -> bool:
    """Return whether what a signal interrupted is `_take_unraised`, where an exception would be lost for good."""
    while frame is not None:
        if frame.f_code is _take_unraised.__code__:
            return True
        frame = frame.f_back
    return False


def _end_by_force(number: int, interrupt: KeyboardInterrupt) -> None:
    try:
        if _received.by_force is not None:
            _received.by_force(interrupt)
    finally:
        os._exit(128 + number)
