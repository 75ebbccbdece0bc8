"""Lock between the processes that write one file."""

import errno
import fcntl
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock, SystemClock
from autotune.files import open_regular

_TIMEOUT_S = 5.0  # for a lock that is held for one write: a longer wait means that its holder is stopped
_LOOK_S = 0.02


class FileLock:
    """Lock between processes on ``flock``: the kernel frees it when its holder dies.

    It has the two methods that Optuna's journals ask of a lock, and can be used in a ``with`` statement.

    Args:
        path: The lock file; it is created, never deleted (deleting it would let two holders in).
        clock: Clock of the wait.
        timeout_s: Longest wait.
        creates: Whether to create the lock file. Who only reads does not: without one nobody writes, and there is
            nothing to wait for.
    """

    def __init__(
        self, path: Path, clock: Clock | None = None, *, timeout_s: float = _TIMEOUT_S, creates: bool = True
    ) -> None:
        self._path = path
        self._creates = creates
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """Wait for the lock; others hold it for one write, or a few.

        Raises:
            OSError: The lock file is no regular file, or another process keeps the lock too long.
        """
        over_s = self._clock.now_s() + self._timeout_s
        try:
            file = open_regular(self._path, append=self._creates, create=self._creates)
        except FileNotFoundError:
            if self._creates:
                raise
            return True
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.now_s() > over_s:
                    file.close()
                    raise OSError(errno.EAGAIN, "another process holds its lock", str(self._path)) from None
                self._clock.wait(_LOOK_S)
            except BaseException:
                file.close()
                raise
            else:
                self._file = file
                return True

    def release(self) -> None:
        """Release the lock."""
        assert self._file is not None or not self._creates, "released without acquire"
        if self._file is not None:
            self._file.close()
        self._file = None

    def __enter__(self) -> None:
        """Acquire the lock."""
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        """Release the lock."""
        self.release()
