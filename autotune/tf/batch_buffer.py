"""Bounded buffer between two stages of a pipeline, each of which is a thread of its own."""

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BufferClosedError(Exception):
    """The buffer was closed by somebody: nothing goes in or comes out any more."""


class BatchBuffer(Generic[Item]):
    """Buffer with one producer and one consumer: order is kept, and whoever has nothing to do sleeps until it has.

    Args:
        size: Most items at a time, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._finished = False
        self._error: BaseException | None = None
        self._closed = False

    def put(self, item: Item) -> None:
        """Append an item, after waiting for room if there is none.

        Raises:
            BufferClosedError: It is closed.
            BaseException: The error of the consumer, if it ended with one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) < self._size)
            if self._error is not None:
                raise self._error
            if self._closed:
                raise BufferClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item | None:
        """Take the oldest item, after waiting for one if there is none.

        Returns:
            The item; None after the last one.

        Raises:
            BufferClosedError: It is closed.
            BaseException: The error of the producer, once everything that it made before is taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items or self._finished)
            if self._closed:
                raise BufferClosedError
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def wait_for_items(self, count: int) -> None:
        """Wait until so many items are there, or all that it holds, or the last one is."""
        with self._changed:
            wanted = min(count, self._size)
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) >= wanted)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that the producer is at the end of the data, or that one of the two ended with an error."""
        with self._changed:
            self._finished = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the items and wake up whoever waits; may be called by anybody, and again."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None  # its traceback holds the frames of the producer, and with them a batch
            self._changed.notify_all()
