"""Promises of the thread that takes readings."""

import threading

from autotune.clock import Poller


def test_reads_until_it_is_told_to_stop():
    """Readings follow each other, and after the stop there are no more."""
    several, readings = threading.Event(), []

    def read():
        readings.append(len(readings))
        if len(readings) == 3:
            several.set()
        return 0.0

    poller = Poller(read, name="test")
    poller.start()
    assert several.wait(60)
    assert poller.stop(deadline_s=60)
    count = len(readings)
    assert readings == list(range(count))


def test_stopping_does_not_wait_for_the_next_reading():
    """A reading that is due in an hour does not hold up the end."""
    first = threading.Event()

    def read():
        first.set()
        return 3600.0

    poller = Poller(read, name="test")
    poller.start()
    assert first.wait(60)
    assert poller.stop(deadline_s=60)


def test_a_hanging_reading_is_left_behind():
    """A driver call that never returns does not hang the search; it is reported as not stopped."""
    release, entered = threading.Event(), threading.Event()

    def read():
        entered.set()
        release.wait(60)

    poller = Poller(read, name="test")
    poller.start()
    assert entered.wait(60)
    assert not poller.stop(deadline_s=0.0)
    release.set()
    assert poller.stop(deadline_s=60)
