"""File of a study's journal, as Optuna's journal storage reads it and appends to it.

Optuna's own backend opens whatever file has the journal's name and assumes that it is the same as before: it blocks on
a pipe, and reads on from the old offset in a file that was truncated or replaced. Here each access checks first.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from autotune.errors import StudyError
from autotune.files import open_regular
from autotune.study.storage.file_lock import FileLock

_REMEDY = "What was measured before is in the answer. Put the file back or move it away, then run the command again."


class JournalFile:
    """Optuna's two-method interface of a journal backend, on one file that must stay the same.

    Args:
        path: The file; created with access for its owner only, if it does not exist.
        lock: Lock that is held while appending.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        self._path = path
        self._lock = lock
        self._begins = [0]  # offset of each entry, and of the next one
        with open_regular(path, append=True, create=True) as file:
            self._is = _identity(file)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the entries from this one on, without a last line that is still being written.

        Raises:
            StudyError: The file was replaced or truncated, or a line in it is no entry.
        """
        number = log_number_from
        with self._opened() as file:
            file.seek(self._begins[number])
            content = file.read()
        for line in content.split(b"\n")[:-1]:
            entry = _entry(line)
            if entry is None:
                raise self._changed("is damaged: this line is not a journal entry", line=number + 1)
            number += 1
            if number == len(self._begins):
                self._begins.append(self._begins[-1] + len(line) + 1)
            yield entry

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append entries; they are on disk when this returns.

        Raises:
            StudyError: The file was replaced or truncated.
            OSError: They cannot be written; the file is as it was.
        """
        lines = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        self._lock.acquire()
        try:
            with self._opened(append=True) as file:
                number = file.fileno()
                size = os.fstat(number).st_size
                if size and os.pread(number, 1, size - 1) != b"\n":
                    # A writer on another machine was killed: an append behind its half line could not be read.
                    file.seek(self._begins[-1])
                    mend_last_line(file, self._path, file.read().rpartition(b"\n")[2])
                    size = os.fstat(number).st_size
                try:
                    while lines:
                        lines = lines[os.write(number, lines) :]
                    os.fsync(number)
                except OSError:
                    # Half a line may be there: cut it off again, so that the next append cannot make it permanent.
                    with contextlib.suppress(OSError):
                        os.ftruncate(number, size)
                    raise
        finally:
            self._lock.release()

    def _opened(self, *, append: bool = False) -> BinaryIO:
        try:
            file = open_regular(self._path, append=append)
        except OSError as error:
            raise self._changed(f"cannot be opened any more: {error.strerror}") from error
        if _identity(file) == self._is and os.fstat(file.fileno()).st_size >= self._begins[-1]:
            return file
        replaced = _identity(file) != self._is
        file.close()
        raise self._changed("was replaced by another file" if replaced else "was cut by somebody else")

    def _changed(self, what: str, *, line: int | None = None) -> StudyError:
        where = f"{self._path}:{line}" if line else str(self._path)
        return StudyError(f"the record of this study {what}", where=where, remedy=_REMEDY)


def repair_journal(path: Path, lock: FileLock) -> int:
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
                if _entry(line) is None:
                    raise StudyError(
                        "the record of this study is damaged: this line is not a journal entry",
                        where=f"{path}:{number}",
                        remedy="Move the file away to start a new study, or cut it before that line "
                        "to keep what came earlier.",
                    )
            return mend_last_line(file, path, last) if last else 0
    finally:
        lock.release()


def mend_last_line(file: BinaryIO, path: Path, last: bytes) -> int:
    """Mend a last line without its newline, whose writer is dead: complete it if it is whole, else cut it off.

    Args:
        file: The journal, whose lock is held.
        path: Its path; what is cut off is kept in ``<journal>.torn``.
        last: That line.

    Returns:
        Bytes cut off.

    Raises:
        OSError: It cannot be written.
    """
    size = file.seek(0, os.SEEK_END)
    if _entry(last) is not None:
        file.write(b"\n")
        file.flush()
        return 0
    with open_regular(path.with_name(path.name + ".torn"), append=True, create=True) as torn:
        torn.write(last + b"\n")
        torn.flush()
        os.fsync(torn.fileno())
    file.truncate(size - len(last))
    os.fsync(file.fileno())
    return len(last)


def _identity(file: BinaryIO) -> tuple[int, int]:
    about = os.fstat(file.fileno())
    return about.st_dev, about.st_ino


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
