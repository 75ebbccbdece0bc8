"""Handling of SIGINT (^C) and SIGTERM: the first raises an exception, later ones are ignored.

Handlers are functions, never "ignore", which started programs would inherit.
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
"""Time after the first signal after which another one forces the exit: the orderly end hangs."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class _Received:
    """State of the received signals."""

    interrupt: KeyboardInterrupt | None = None  # for the first signal
    first_s = 0.0
    is_pending = False
    is_lost = False  # it was dropped, in a finalizer or weak reference callback
    holds = 0  # active `signals_held` blocks
    by_force: Callable[[KeyboardInterrupt], object] | None = None


_received = _Received()
_clock = SystemClock()


def take_signals() -> None:
    """Install handlers, but not for ignored signals: SIGINT raises KeyboardInterrupt, SIGTERM `Terminated`."""
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    sys.unraisablehook = _take_unraised


def end_by_force_with(by_force: Callable[[KeyboardInterrupt], object]) -> None:
    """Set the function to call before a later signal forces the exit."""
    _received.by_force = by_force


def interrupted_by() -> KeyboardInterrupt | None:
    """Return the exception that ends this process, if any."""
    return _received.interrupt


@contextmanager
def signals_held() -> Iterator[None]:
    """Defer signals in this block of the main thread, for work that must not be interrupted, and imports."""
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
    """Ignore signals from now on; for the very end of the process."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def release_signals() -> None:
    """Restore the default handlers, for the program that this process executes next."""
    for number in _NUMBERS:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL)


def _on_signal(number: int, frame: FrameType | None) -> None:
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
    """Raise a dropped interrupt again a moment later; report other errors as usual."""
    if error.exc_value is None or error.exc_value is not _received.interrupt:
        sys.__unraisablehook__(error)
        return
    _received.is_lost = True
    _signal_later()


def _signal_later() -> None:
    # the finalizer has mostly ended by then; otherwise the interrupt is dropped and raised again
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()


def _is_in_hook(frame: FrameType | None) -> bool:
    """Return whether a signal interrupted `_take_unraised`, which would lose an exception for good."""
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
