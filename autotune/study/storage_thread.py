"""Thread in which a study's storage is used, so that nobody has to wait for a server that does not answer."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from autotune.clock import SystemClock

_T = TypeVar("_T")


class StorageThread:
    """Thread that makes calls one after the other, and a regular one between them.

    It is started by the first call and ends when there has been nothing to do for a while. An interrupt ends the
    waiting of the caller, never a call halfway.

    Args:
        name: Name of the thread.
        regular: Called between calls, every `period_s`, also while there are many; returns whether it has to be called
            again.
        period_s: Time between two such calls, in seconds.
    """

    def __init__(self, name: str, regular: Callable[[], bool], period_s: float) -> None:
        self._name = name
        self._regular = regular
        self._period_s = period_s
        self._clock = SystemClock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._given_up: Future[Any] | None = None

    @property
    def is_stuck(self) -> bool:
        """True while a call goes on that its caller has given up."""
        return self._given_up is not None and not self._given_up.done()

    def call(self, function: Callable[[], _T], patience_s: float | None = None) -> _T:
        """Make a call, wait for its end, and return what it returns.

        Args:
            function: The call.
            patience_s: Longest wait, in seconds; None to wait until it ends.

        Raises:
            TimeoutError: It did not end in time; it goes on, and others wait behind it.
            Exception: Whatever it raises.
        """
        future: Future[_T] = Future()

        def make() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 -- it is raised in the caller's thread
                future.set_exception(error)

        with self._lock:
            self._calls.put(make)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        try:
            return future.result(patience_s)
        except TimeoutError:
            if not future.done():
                self._given_up = future
            raise

    def _work(self) -> None:
        due_s = self._clock.now_s() + self._period_s
        has_worked = True
        while True:
            try:
                call = self._calls.get(timeout=max(0.0, due_s - self._clock.now_s()))
            except queue.Empty:  # it is due, however many calls there were since the last time
                due_s = self._clock.now_s() + self._period_s
                if self._regular() or has_worked:
                    has_worked = False
                    continue
                with self._lock:
                    if self._calls.empty():
                        self._thread = None
                        return
            else:
                has_worked = True
                call()
