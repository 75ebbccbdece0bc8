"""Promises of the thread that takes readings."""

import threading

from autotune.clock import Poller
from tests.until import DEADLINE_S


def test_stopping_does_not_wait_for_the_next_reading():
    """A reading that is due in an hour does not hold up the end."""
    first = threading.Event()
    poller = Poller(lambda: first.set() or 3600.0, name="test")
    poller.start()
    assert first.wait(DEADLINE_S)
    assert poller.stop(deadline_s=DEADLINE_S)


def test_a_hanging_reading_is_left_behind():
    """A driver call that never returns does not hang the search; it is reported as not stopped."""
    release, entered = threading.Event(), threading.Event()
    poller = Poller(lambda: entered.set() or release.wait(DEADLINE_S), name="test")
    poller.start()
    assert entered.wait(DEADLINE_S)
    assert not poller.stop(deadline_s=0.0)
    release.set()
    assert poller.stop(deadline_s=DEADLINE_S)
