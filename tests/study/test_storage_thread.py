"""The thread in which a storage is used: calls in order, and signs of life between them."""

import threading

from autotune.clock import SystemClock
from autotune.study.record import StorageThread

LONG_S = 30.0


def test_signs_of_life_come_also_while_there_are_many_calls() -> None:
    """Trials that are short, or others that are looked for often, leave the thread no quiet time."""
    clock = SystemClock()
    signs: list[float] = []

    def regular() -> bool:
        signs.append(clock.now_s())
        return True

    thread = StorageThread("busy", regular, 0.05)
    over_s = clock.now_s() + LONG_S
    while len(signs) < 3 and clock.now_s() < over_s:
        thread.call(lambda: None)  # never idle for as long as the period
    assert len(signs) >= 3


def test_the_thread_ends_after_a_while_without_calls() -> None:
    """Nothing is left of a study that nobody uses; the next call starts it again."""
    thread = StorageThread("idle", lambda: False, 0.05)
    first = thread.call(threading.current_thread)
    first.join(LONG_S)
    assert not first.is_alive()
    assert thread.call(lambda: 7) == 7
