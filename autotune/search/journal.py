"""Locks around a study's journal, and the repair of its last line.

As Optuna ships its journal, a line torn by a crash and followed by an append makes the file unreadable for
ever, and a stale lock file costs 30 s. A lock that the kernel frees with its holder, and a look at the last
line before the file is opened, avoid both.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from autotune.clock import Clock
from autotune.errors import StudyBusy, StudyError
from autotune.files import open_regular


class JournalLock:
    """Optuna's two-method lock interface on ``flock``: the kernel frees it when its holder dies.

    Args:
        path: The lock file; it is created, never deleted (deleting it would let two holders in).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Waits for the lock; it is held for one append, so the wait is milliseconds."""
        self._file = open_regular(self._path, append=True, create=True)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Gives the lock back."""
        assert self._file is not None, "released without acquire"
        self._file.close()
        self._file = None


@contextmanager
def sole_search(path: Path, study: str) -> Iterator[None]:
    """Holds a study for one search on this machine.

    Args:
        path: Lock file of the search; it names the holder for whoever comes second.
        study: Name of the study, for the message.

    Raises:
        StudyBusy: Another search holds it.
        StudyError: The lock file cannot be opened, e.g. since a link is in its place.
    """
    try:
        opened = open_regular(path, append=True, create=True)
    except OSError as error:
        raise StudyError(
            f"the lock file of this study cannot be opened: {error.strerror}",
            where=str(path),
            remedy="See what is there, and delete it if it is not yours; or choose another place with --state-dir.",
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(40).decode("ascii", "replace").strip()
            raise StudyBusy(
                f"another search is working on study {study}" + (f" (process {holder})" if holder else ""),
                remedy="Wait until it ends, or end it with ^C in its terminal; then run the same command again.",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def set_aside(path: Path, clock: Clock) -> Path | None:
    """Makes room for a new record: the old one stays beside it, under a name with the time.

    Returns:
        Where it is now; None if there was none.
    """
    if not path.exists():
        return None
    aside = path.with_name(f"{path.stem}.until-{clock.utc():%Y%m%dT%H%M%SZ}{path.suffix}")
    path.rename(aside)
    return aside


def repair_journal(path: Path, lock: JournalLock) -> int:
    """Mends what a crash left at the end of a journal, and refuses a journal that is damaged elsewhere.

    A last line without its newline is completed if it is whole, else cut off and kept in ``<journal>.torn``.

    Returns:
        Bytes cut off, usually 0.

    Raises:
        StudyError: A line in the middle is not a journal line; nothing was changed.
    """
    if not path.exists():
        return 0
    lock.acquire()
    try:
        with path.open("r+b") as file:
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
            with path.with_name(path.name + ".torn").open("ab") as torn:
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
