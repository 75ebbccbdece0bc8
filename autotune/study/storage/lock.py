"""Locks between processes that write one file."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock, SystemClock
from autotune.errors import StudyBusy, StudyError, os_errors_as
from autotune.files import open_regular

_TIMEOUT_S = 5.0  # held for one write: a longer wait means a stopped holder


class FileLock:
    """Lock between processes with ``flock``, which the kernel releases when the holder dies.

    Args:
        path: Lock file, never deleted, as two processes could then hold the lock.
        creates: False for readers: without a lock file there is no writer.

    Raises:
        OSError: Not a regular file, or another process holds it for too long; from `__enter__`.
    """

    def __init__(
        self, path: Path, clock: Clock | None = None, *, timeout_s: float = _TIMEOUT_S, creates: bool = True
    ) -> None:
        self._path = path
        self._creates = creates
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._file: BinaryIO | None = None

    def __enter__(self) -> None:
        over_s = self._clock.now_s() + self._timeout_s
        try:
            file = open_regular(self._path, append=self._creates, create=self._creates)
        except FileNotFoundError:
            if self._creates:
                raise
            return
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
                return

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class LockProbe:
    """Lock of one member, next to a journal."""

    def __init__(self, journal: Path, member: str) -> None:
        self._journal = journal
        self._path = self._path_of(member)
        self._file: BinaryIO | None = None

    def hold(self) -> None:
        """Hold the lock until `close`; may raise `OSError`."""
        self._file = open_regular(self._path, append=True, create=True)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def holds(self, member: str) -> bool | None:
        """Return whether another member's lock is visible here, if known."""
        if not member.isalnum():  # untrusted, becomes part of a path
            return None
        try:
            with open_regular(self._path_of(member), append=True) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
        return False

    def delete_stale(self, member: str) -> None:
        if self.holds(member) is False:
            with contextlib.suppress(OSError):
                self._path_of(member).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _path_of(self, member: str) -> Path:
        return self._journal.with_name(f"{self._journal.stem}.{member}.alive")


# Lock against a second search or worker of a study on this machine


@contextmanager
def sole_search(path: Path, study: str) -> Iterator[None]:
    """Hold a study for one search on this machine by a file with its process id.

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
            path.unlink(missing_ok=True)  # before the lock is released


def _locked(path: Path, study: str) -> BinaryIO:
    """Open and lock the file, retrying if its holder has just deleted it."""
    remedy = "Remove what is in its place, or choose another folder with --state-dir."
    while True:
        with os_errors_as(StudyError, "cannot lock this study", where=path, remedy=remedy):
            file = open_regular(path, append=True, create=True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read(20)
            process = f" (process {int(holder)})" if holder.isdigit() else ""
            raise StudyBusy(
                f"another search or worker on this machine is using study {study}{process}",
                remedy="Wait for it or stop it, then run the same command again.",
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
