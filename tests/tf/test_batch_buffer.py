"""The buffer between two stages keeps its order and its size, and wakes up whoever waits."""

import threading
from collections.abc import Callable

import pytest

from autotune.tf.two_stage import BatchBuffer, BufferClosedError


def waiting(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that makes the call; what came of it is in the list when it has ended."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


def test_items_come_in_order_and_none_comes_after_the_last() -> None:
    """A producer that is ahead waits, one that is behind is waited for."""
    buffer: BatchBuffer[int] = BatchBuffer(2)

    def produce() -> None:
        for number in range(1000):
            buffer.put(number)
        buffer.finish()

    thread, _ = waiting(produce)
    taken = [buffer.get() for _ in range(1002)]
    thread.join(60)
    assert taken == [*range(1000), None, None]


def test_a_full_buffer_makes_the_producer_wait() -> None:
    """The third item goes in when the first is taken out."""
    buffer: BatchBuffer[int] = BatchBuffer(2)
    buffer.put(0), buffer.put(1)
    thread, _ = waiting(lambda: buffer.put(2))
    thread.join(0.02)
    assert thread.is_alive()
    assert buffer.get() == 0
    thread.join(60)
    assert (buffer.get(), buffer.get()) == (1, 2)


def test_an_error_comes_after_the_items_before_it() -> None:
    """To the consumer in its turn, to the producer at once."""
    buffer: BatchBuffer[int] = BatchBuffer(2)
    buffer.put(1)
    buffer.finish(ValueError("broken"))
    assert buffer.get() == 1
    with pytest.raises(ValueError, match="broken"):
        buffer.get()
    with pytest.raises(ValueError, match="broken"):
        buffer.put(2)


@pytest.mark.parametrize("side", ["put", "get", "warm"])
def test_closing_wakes_up_whoever_waits(side: str) -> None:
    """Both sides are told that it is closed, whatever is in it."""
    buffer: BatchBuffer[int] = BatchBuffer(1)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: buffer.put(2),
        "get": buffer.get,
        "warm": lambda: buffer.wait_for_items(1) or buffer.get(),
    }
    if side == "put":
        buffer.put(1)
    thread, came = waiting(calls[side])
    buffer.close()
    thread.join(60)
    assert isinstance(came[0], BufferClosedError)
    with pytest.raises(BufferClosedError):
        buffer.get()


def test_waiting_for_items_ends_with_the_data() -> None:
    """Fewer batches than were asked for are no reason to wait for ever."""
    buffer: BatchBuffer[int] = BatchBuffer(4)
    buffer.put(1)
    thread, came = waiting(lambda: buffer.wait_for_items(9))
    buffer.finish()
    thread.join(60)
    assert came == [None]
