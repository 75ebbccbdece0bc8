"""Poller: a thread that takes one reading after another until it is stopped."""

import threading
from collections.abc import Callable


class Poller:
    """Daemon thread that calls ``read``, which returns the seconds until the next call, or None for no more.

    Waiting here is for an event and not on the injected clock: it only sets how densely the instrument reads,
    every reading carries its own stamp, and `stop` must not have to wait for the next one.
    """

    def __init__(self, read: Callable[[], float | None], *, name: str) -> None:
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which takes the first reading now."""
        self._thread.start()

    def stop(self, *, deadline_s: float = 2.0) -> bool:
        """End the readings.

        Args:
            deadline_s: Time to wait for a reading that is under way.

        Returns:
            False if that reading did not return in time: a driver call can hang, and then the daemon thread
            is left to the end of the process.
        """
        self._stop.set()
        if self._thread.ident is None:
            return True  # it was never started, or could not be
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        wait_s = self._read()
        while wait_s is not None and not self._stop.wait(wait_s):
            wait_s = self._read()
