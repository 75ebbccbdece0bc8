"""The thread in which a storage is used: calls in order, and signs of life between them."""

import threading

from autotune.study.calls import StorageThread
from tests.until import DEADLINE_S, until


def test_signs_of_life_come_also_while_there_are_many_calls() -> None:
    """Trials that are short, or others that are looked for often, leave the thread no quiet time."""
    signs: list[bool] = []

    def regular() -> bool:
        signs.append(True)
        return True

    thread = StorageThread("busy", regular, 0.05)

    def has_signs() -> bool:
        for _ in range(1000):
            thread.call(lambda: None)  # never idle for as long as the period
        return len(signs) >= 3

    until(has_signs)


def test_the_thread_ends_after_a_while_without_calls() -> None:
    """Nothing is left of a study that is no longer used; the next call starts it again."""
    thread = StorageThread("idle", lambda: False, 0.05)
    first = thread.call(threading.current_thread)
    first.join(DEADLINE_S)
    assert not first.is_alive()
    assert thread.call(lambda: 7) == 7
