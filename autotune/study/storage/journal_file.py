"""File of a study's journal, as Optuna's journal storage reads it and appends to it.

Optuna's own backend opens whatever file has the journal's name and assumes that it is the same as before: it blocks on
a pipe, and reads on from the old offset in a file that was truncated or replaced. Here each access checks first.
It also waits for the disk after each entry, of which a trial has thirty; here `JournalFile.sync` waits for all.
"""

import contextlib
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from autotune.errors import StudyError
from autotune.files import open_regular
from autotune.study.storage.file_lock import FileLock

_REMEDY = "What was measured before is in the answer. Put the file back or move it away, then run the command again."
_REMEDY_AT_OPENING = "Move the file away to start a new study, or cut it before that line to keep what came earlier."


class JournalFile:
    """Optuna's two-method interface of a journal backend, on one file that must stay the same.

    Args:
        path: The file.
        lock: Lock that is held while appending.
        creates: Whether the file is created, with access for its owner only, if it does not exist.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path, lock: FileLock, *, creates: bool = True) -> None:
        self._path = path
        self._lock = lock
        self._begins = array("Q", [0])  # offset of each entry, and of the next one
        self._is_synced = True
        with open_regular(path, append=creates, create=creates) as file:
            self._is = _identity(file)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the entries from this one on, without a last line that is still being written.

        Raises:
            StudyError: The file was replaced or truncated, or a line in it is no entry.
        """
        number = log_number_from
        with self._opened() as file:
            file.seek(self._begins[number])
            for line in file:
                if not line.endswith(b"\n"):
                    return
                entry = _entry(line)
                if entry is None:
                    raise StudyError(
                        "the record of this study is damaged: this line is not a journal entry",
                        where=f"{self._path}:{number + 1}",
                        remedy=_REMEDY if log_number_from else _REMEDY_AT_OPENING,
                    )
                number += 1
                if number == len(self._begins):
                    self._begins.append(self._begins[-1] + len(line))
                yield entry

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append entries; they are on disk after the next `sync`.

        Raises:
            StudyError: The file was replaced or truncated.
            OSError: They cannot be written; the file is as it was.
        """
        lines = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        self._lock.acquire()
        try:
            with self._opened(append=True) as file:
                self._mend_last_line(file)
                size = file.seek(0, os.SEEK_END)
                try:
                    while lines:
                        lines = lines[os.write(file.fileno(), lines) :]
                except OSError:
                    # Half a line may be there: cut it off again, so that the next append cannot make it permanent.
                    with contextlib.suppress(OSError):
                        os.ftruncate(file.fileno(), size)
                    raise
            self._is_synced = False
        finally:
            self._lock.release()

    def sync(self) -> None:
        """Wait until everything that was appended is on disk.

        Raises:
            StudyError: The file was replaced or truncated.
            OSError: It cannot be written.
        """
        if not self._is_synced:
            with self._opened(append=True) as file:
                os.fsync(file.fileno())
            self._is_synced = True

    def repair(self) -> int:
        """Repair a torn last line: it is completed if it is whole, else cut off and kept in ``<journal>.torn``.

        Returns:
            Bytes cut off, usually 0.

        Raises:
            StudyError: The file was replaced or truncated.
            OSError: It cannot be written.
        """
        with self._opened() as file:
            if _is_whole(file):  # who only reads leaves no lock behind
                return 0
        self._lock.acquire()
        try:
            with self._opened(append=True) as file:
                return self._mend_last_line(file)
        finally:
            self._lock.release()

    def _mend_last_line(self, file: BinaryIO) -> int:
        """Mend a last line without its newline, whose writer is dead; return the bytes cut off. The lock is held."""
        if _is_whole(file):
            return 0
        size = file.seek(0, os.SEEK_END)
        file.seek(self._begins[-1])
        last = file.read().rpartition(b"\n")[2]
        if _entry(last) is not None:
            file.write(b"\n")
            file.flush()
            return 0
        with open_regular(self._path.with_name(self._path.name + ".torn"), append=True, create=True) as torn:
            torn.write(last + b"\n")
            torn.flush()
            os.fsync(torn.fileno())
        file.truncate(size - len(last))
        os.fsync(file.fileno())
        return len(last)

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

    def _changed(self, what: str) -> StudyError:
        return StudyError(f"the record of this study {what}", where=str(self._path), remedy=_REMEDY)


def _is_whole(file: BinaryIO) -> bool:
    """Return whether a file ends with a whole line."""
    size = file.seek(0, os.SEEK_END)
    return not size or os.pread(file.fileno(), 1, size - 1) == b"\n"


def _identity(file: BinaryIO) -> tuple[int, int]:
    about = os.fstat(file.fileno())
    return about.st_dev, about.st_ino


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = _parsed(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _parsed(line: bytes) -> Any:
    """Parse JSON in a third of the time that `json` takes, which reads what is left: halves of characters."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)
