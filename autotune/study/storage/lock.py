"""Lock between the processes that write one file."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock, SystemClock
from autotune.errors import StudyBusy, StudyError
from autotune.files import open_regular

_TIMEOUT_S = 5.0  # for a lock that is held for one write: a longer wait means that its holder is stopped


class FileLock:
    """Lock between processes on ``flock``: the kernel frees it when its holder dies.

    It has the two methods that Optuna's journals ask of a lock, and can be used in a ``with`` statement.

    Args:
        path: The lock file; it is created, never deleted (deleting it would let two holders in).
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
                self._clock.wait(0.02)
            except BaseException:
                file.close()
                raise
            else:
                self._file = file
                return True

    def release(self) -> None:
        assert self._file is not None or not self._creates, "released without acquire"
        if self._file is not None:
            self._file.close()
        self._file = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class LockProbe:
    """Lock of one member beside a journal."""

    def __init__(self, journal: Path, member: str) -> None:
        self._journal = journal
        self._path = self._path_of(member)
        self._file: BinaryIO | None = None

    def hold(self) -> None:
        """Lock the member's file, until `close`.

        Raises:
            OSError: It cannot be made, or not be locked: this disk has no locks.
        """
        self._file = open_regular(self._path, append=True, create=True)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def holds(self, member: str) -> bool | None:
        """Return whether another member's lock is seen here; None where it has no file, or that cannot be told."""
        if not member.isalnum():  # it comes out of the storage, and becomes part of a path
            return None
        try:
            with open_regular(self._path_of(member), append=True) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
        return False

    def delete_left(self, member: str) -> None:
        """Delete the file of a member that is gone, and could not do so itself."""
        if self.holds(member) is False:
            with contextlib.suppress(OSError):
                self._path_of(member).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock, and delete the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _path_of(self, member: str) -> Path:
        return self._journal.with_name(f"{self._journal.stem}.{member}.alive")


# Lock that keeps a second search, or worker, of one study off this machine.


@contextmanager
def sole_search(path: Path, study: str) -> Iterator[None]:
    """Hold a study for one search on this machine.

    Args:
        path: Lock file of the search; it names the holder for the message to others.

    Raises:
        StudyBusy: Another search holds it.
    """
    with _locked(path, study) as file:
        file.truncate(0)
        file.write(b"%d" % os.getpid())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held: the next boot's has another name


def _locked(path: Path, study: str) -> BinaryIO:
    """Open and lock the file of that path, and not one that its holder has just deleted."""
    while True:
        try:
            file = open_regular(path, append=True, create=True)
        except OSError as error:
            raise StudyError(
                f"the lock of this study cannot be used: {error.strerror}",
                where=str(path),
                remedy="Take away what is in its place, or choose another place with --state-dir.",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read(20)
            raise StudyBusy(
                f"another search or worker of this machine is working on study {study}"
                + (f" (process {int(holder)})" if holder.isdigit() else ""),
                remedy="Wait until it ends, or end it with ^C in its terminal"
                + (f" or with kill {int(holder)}" if holder.isdigit() else "")
                + "; then run the same command again.",
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
