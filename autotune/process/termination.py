"""SIGINT (^C) and SIGTERM: the first one ends what goes on in order, as an exception, and further ones do not disturb.

A process has one table of signals, so there is one state here. Handlers are functions, never "ignore", because what is
ignored stays so in every program that is started.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.clock import SystemClock
from autotune.errors import ToldToEnd

INSISTING_S = 5.0
"""A signal that comes so long after the first one ends the process by force: what ends in order hangs."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class _Told:
    """What this process was told.

    Attributes:
        interrupt: The exception for the first signal; None before that.
        first_s: When that came.
        is_pending: Whether it has still to be raised.
        holds: How many blocks do not want to be interrupted.
        by_force: Ends the process without any order.
    """

    interrupt: KeyboardInterrupt | None = None
    first_s = 0.0
    is_pending = False
    holds = 0
    by_force: Callable[[KeyboardInterrupt], object] | None = None


_told = _Told()
_clock = SystemClock()


def take_signals() -> None:
    """Makes the first SIGINT raise KeyboardInterrupt, the first SIGTERM `ToldToEnd`, from now on.

    What was ignored already stays so.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _hear)


def end_by_force_with(by_force: Callable[[KeyboardInterrupt], object]) -> None:
    """Says what has to be done before the process ends at once, because somebody insists."""
    _told.by_force = by_force


def interrupted_by() -> KeyboardInterrupt | None:
    """What ended this process, or is about to; None if nothing did."""
    return _told.interrupt


@contextmanager
def signals_held() -> Iterator[None]:
    """Inside, a signal waits: for what must be done whole, and for imports, in which an exception can get lost.

    Signals are the main thread's; in another one nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _told.holds += 1
    try:
        yield
    finally:
        _told.holds -= 1
        if _told.is_pending and not _told.holds:
            _raise()


def ignore_signals() -> None:
    """To be called at the very end, when nothing is left that could be interrupted."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def release_signals() -> None:
    """Gives signals back the effect that they have by themselves, for the program that this process becomes."""
    for number in _NUMBERS:
        if signal.getsignal(number) is _hear:
            signal.signal(number, signal.SIG_DFL)


def _hear(number: int, _frame: FrameType | None) -> None:
    if _told.interrupt is not None:
        if _clock.now_s() - _told.first_s >= INSISTING_S:
            _end_by_force(number, _told.interrupt)
        return
    _told.interrupt = ToldToEnd() if number == signal.SIGTERM else KeyboardInterrupt()
    _told.first_s = _clock.now_s()
    _told.is_pending = True
    if not _told.holds:
        _raise()


def _raise() -> None:
    assert _told.interrupt is not None
    _told.is_pending = False
    raise _told.interrupt


def _end_by_force(number: int, interrupt: KeyboardInterrupt) -> None:
    try:
        if _told.by_force is not None:
            _told.by_force(interrupt)
    finally:
        os._exit(128 + number)
