"""Locks around a study's journal, and the repair of its last line.

As Optuna ships its journal, a line torn by a crash and followed by an append makes the file unreadable for
ever, and a stale lock file costs 30 s. A lock that the kernel frees with its holder, and a look at the last
line before the file is opened, avoid both.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock, SystemClock
from autotune.errors import StudyBusy, StudyError
from autotune.files import open_regular

_TIMEOUT_S = 5.0  # for a lock that is held for one append: a longer wait means that its holder is stopped
_LOOK_S = 0.02


class JournalLock:
    """Optuna's two-method lock interface on ``flock``: the kernel frees it when its holder dies.

    Args:
        path: The lock file; it is created, never deleted (deleting it would let two holders in).
        clock: Clock of the wait.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """Wait for the lock; it is held for one append, so the wait is milliseconds.

        Raises:
            OSError: The lock file is no regular file, or another process keeps the lock too long.
        """
        over_s = self._clock.now_s() + _TIMEOUT_S
        file = open_regular(self._path, append=True, create=True)
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
        assert self._file is not None, "released without acquire"
        self._file.close()
        self._file = None


@contextmanager
def sole_search(path: Path, study: str) -> Iterator[None]:
    """Hold a study for one search on this machine.

    Args:
        path: Lock file of the search; it names the holder for the message to others.
        study: Name of the study, for the message.

    Raises:
        StudyBusy: Another search holds it.
        StudyError: The lock file is not a regular file.
    """
    try:
        opened = open_regular(path, append=True, create=True)
    except OSError as error:
        raise StudyError(
            f"the lock of this study cannot be used: {error.strerror}",
            where=str(path),
            remedy="Take away what is in its place, or choose another place with --state-dir.",
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20)
            raise StudyBusy(
                f"another search is working on study {study}"
                + (f" (process {int(holder)})" if holder.isdigit() else ""),
                remedy="Wait until it ends, or end it with ^C in its terminal; then run the same command again.",
            ) from None
        file.truncate(0)
        file.write(b"%d" % os.getpid())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def set_aside(path: Path, clock: Clock) -> Path | None:
    """Rename the present record, with the time in its new name, to make room for a new one.

    Returns:
        New path of the old record; None if there was none.
    """
    if not os.path.lexists(path):
        return None
    aside = path.with_name(f"{path.stem}.until-{clock.utc():%Y%m%dT%H%M%SZ}{path.suffix}")
    path.rename(aside)
    return aside


def repair_journal(path: Path, lock: JournalLock) -> int:
    """Repair a torn last line of a journal, and refuse a journal that is damaged elsewhere.

    A last line without its newline is completed if it is whole, else cut off and kept in ``<journal>.torn``.

    Returns:
        Bytes cut off, usually 0.

    Raises:
        StudyError: A line in the middle is not a journal line; nothing was changed.
        OSError: It cannot be opened, or is no regular file.
    """
    if not os.path.lexists(path):
        return 0
    lock.acquire()
    try:
        with open_regular(path, write=True) as file:
            content = file.read()
            whole, newline, last = content.rpartition(b"\n")
            for number, line in enumerate(whole.split(b"\n") if newline else (), start=1):
                if not _is_entry(line):
                    raise StudyError(
                        "the record of this study is damaged: this line is not a journal entry",
                        where=f"{path}:{number}",
                        remedy="Move the file away to start a new study, or cut it before that line "
                        "to keep what came earlier.",
                    )
            if not last:
                return 0
            if _is_entry(last):
                file.write(b"\n")
                return 0
            with open_regular(path.with_name(path.name + ".torn"), append=True, create=True) as torn:
                torn.write(last + b"\n")
                torn.flush()
                os.fsync(torn.fileno())
            file.truncate(len(content) - len(last))
            os.fsync(file.fileno())
            return len(last)
    finally:
        lock.release()


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
