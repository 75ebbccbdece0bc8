"""Folder of journals: the storage that needs nothing but a disk, a file for each study.

As Optuna ships its journal, a line torn by a crash and followed by an append makes the file unreadable for
ever, and a stale lock file costs 30 s. A lock that the kernel frees with its holder, and a look at the last
line before the file is opened, avoid both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from autotune.clock import Clock
from autotune.errors import StudyError
from autotune.files import open_regular
from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.lock import FileLock, LockProbe
from autotune.study.storage.storage import DAMAGE, MEMBER_NUMBERS, Connection, Storage, first_kept, member_names

_UNTIL = re.compile(r"\.until-\d{8}T\d{6}Z$")


class JournalFolder:
    """Storage of studies in one folder, a journal each; see `Storage`.

    Args:
        folder: The folder. It is made with the first study, if the one above it is there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, study: str) -> Path:
        """Return the file that holds a study."""
        return self._folder / f"{study}.journal"

    def where(self, study: str) -> str:
        return str(self.path(study))

    def latest(self, pattern: str) -> str | None:
        """Return the study whose journal was written last."""
        with _expected(self._folder):
            latest = max(self._folder.glob(f"{pattern}.journal"), key=lambda path: path.stat().st_mtime, default=None)
        return latest.stem if latest else None

    def names(self) -> list[str]:
        """Return the names of the journals, without those that were set aside."""
        with _expected(self._folder):
            found = sorted(path.stem for path in self._folder.glob("*.journal"))
        return [name for name in found if not _UNTIL.search(name)]

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Open a journal, which is created if it does not exist and is to be written; its last line is repaired."""
        import optuna  # takes longer than all else that a reader of a study does
        from optuna.storages import JournalStorage

        path = self.path(study)
        with _expected(path):
            if not reads_only:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _require_own(path)
            file = JournalFile(path, _lock(path), creates=not reads_only)
            storage = JournalStorage(file)  # type: ignore[arg-type]
            torn_bytes = file.repair()  # once every line before it was read: what is damaged stays as it is
        return Connection(
            storage=storage,
            expected=lambda: _expected(path, file),
            names=partial(optuna.get_all_study_names, storage),
            torn_bytes=torn_bytes,
            lock_probe=partial(LockProbe, path),
        )

    def read(self, study: str) -> tuple[list[tuple[int, JournalTrial]], dict[str, Any]] | None:
        """Read a study without Optuna: its trials with their numbers, and its attributes.

        Returns:
            None where the journal does not have it, or has what only Optuna can judge.
        """
        path = self.path(study)
        with _expected(path):
            file = JournalFile(path, _lock(path), creates=False)
            entries = list(file.read_logs(0))
            file.repair()
            entries += file.read_logs(len(entries))
        try:
            found = _replayed(entries)
        except DAMAGE:
            return None
        members = [found[name] for name in member_names(study, found)]
        if not members:
            return None
        first = first_kept([attributes for attributes, _ in members])
        numbered = [
            (place * MEMBER_NUMBERS + number, trial)
            for place, (_, trials) in enumerate(members[first:], start=first)
            for number, trial in enumerate(trials)
        ]
        return numbered, members[first][0]

    def attributes(self, name: str) -> list[object]:
        """Return nothing: each journal is a file of its own, and many of them take long to read."""
        return []

    def set_aside(self, study: str, clock: Clock) -> None:
        """Rename a journal, with the time in its new name."""
        path = self.path(study)
        with _expected(path):
            if os.path.lexists(path):
                path.rename(path.with_name(f"{path.stem}.until-{clock.utc():%Y%m%dT%H%M%SZ}{path.suffix}"))

    def discard(self, study: str, trash: Path) -> None:
        """Move a journal, and what lies beside it, into a folder."""
        path = self.path(study)
        with _expected(path), _lock(path):  # no entry is half written
            for end in ("", ".torn"):
                beside = path.with_name(path.name + end)
                if os.path.lexists(beside):
                    shutil.move(beside, trash / beside.name)  # perhaps onto another disk


def _lock(path: Path) -> FileLock:
    # Not "<journal>.lock": that is the name of Optuna's own lock, which would wait 30 s for ours to go.
    return FileLock(path.with_name(path.name + ".flock"))


@dataclass(kw_only=True)
class JournalTrial:
    """Trial as the entries of a journal make it, as far as a record needs it."""

    user_attrs: dict[str, Any]
    datetime_start: datetime | None
    is_finished: bool


_IS_FINISHED = {0: False, 1: True, 2: True, 3: True}  # by Optuna's state; a trial of 4 waits for a worker of Optuna


def _replayed(entries: Iterable[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], list[JournalTrial]]]:
    """Return the attributes and the trials of each Optuna study in a journal, as `JournalStorage` reads it.

    Raises:
        LookupError: An entry is of a kind that autotune does not write. Other errors of `DAMAGE`: one is damaged.
    """
    studies: dict[str, tuple[dict[str, Any], list[JournalTrial]]] = {}
    by_id: dict[int, tuple[dict[str, Any], list[JournalTrial]]] = {}
    trials: dict[int, JournalTrial] = {}
    for entry in entries:
        operation = entry["op_code"]
        if operation == 0:  # a study is created, perhaps by several machines at once
            if entry["study_name"] not in studies:
                studies[entry["study_name"]] = by_id[len(by_id)] = {}, []
        elif operation == 2:  # an attribute of a study
            by_id[entry["study_id"]][0].update(entry["user_attr"])
        elif operation == 4:  # a trial is created
            start = entry["datetime_start"]
            trials[len(trials)] = trial = JournalTrial(
                user_attrs=entry.get("user_attrs", {}),
                datetime_start=datetime.fromisoformat(start).astimezone().replace(tzinfo=None) if start else None,
                is_finished=_IS_FINISHED[entry.get("state", 0)],
            )
            by_id[entry["study_id"]][1].append(trial)
        elif operation in (6, 7, 8):  # its state, an intermediate value, an attribute; nothing once it has finished
            trial = trials[entry["trial_id"]]
            if operation == 8 and not trial.is_finished:
                trial.user_attrs = {**trial.user_attrs, **entry["user_attr"]}
            elif operation == 6 and not trial.is_finished:
                trial.is_finished = _IS_FINISHED[entry["state"]]
        elif operation not in (3, 9):  # attributes of Optuna's own
            raise LookupError(operation)
    return studies


def _require_own(path: Path) -> None:
    """Check that a journal is this user's: who can write it can spoil it for all, and what is in it is trusted.

    Raises:
        StudyError: It is another user's.
    """
    owner = path.lstat().st_uid if os.path.lexists(path) else os.geteuid()
    if owner != os.geteuid() and os.geteuid() != 0:
        raise StudyError(
            f"this journal belongs to another user (id {owner})",
            where=str(path),
            remedy="A journal serves one user. For several, keep the study in PostgreSQL: --storage postgresql://...",
        )


@contextmanager
def _expected(path: Path, file: JournalFile | None = None) -> Iterator[None]:
    """Wait for the disk in the end; turn errors that it, or another writer, can cause into `StudyError`."""
    try:
        yield
        if file is not None:
            file.sync()
    except OSError as error:
        raise StudyError(
            f"the record of this study cannot be written: {error.strerror}",
            where=str(path),
            remedy="Free some space or mend the permissions, then run the same command again: it goes on.",
        ) from error
    except _errors() as error:
        # Whole lines of JSON, but not what Optuna wrote: it trusts its own file.
        raise StudyError(
            f"the record of this study is damaged: {type(error).__name__}: {ascii(str(error))[1:101]}",
            where=str(path),
            remedy="Move the file away to start a new study.",
        ) from error


def _errors() -> tuple[type[Exception], ...]:
    import optuna

    return (*DAMAGE, optuna.exceptions.OptunaError)


_REMEDY = "What was measured before is in the answer. Put the file back or move it away, then run the command again."
_REMEDY_AT_OPENING = "Move the file away to start a new study, or cut it before that line to keep what came earlier."


class JournalFile:
    """Optuna's two-method interface of a journal backend, on one file that must stay the same.

    Args:
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
        """Wait until everything that was appended is on disk."""
        if not self._is_synced:
            with self._opened(append=True) as file:
                os.fsync(file.fileno())
            self._is_synced = True

    def repair(self) -> int:
        """Repair a torn last line: it is completed if it is whole, else cut off and kept in ``<journal>.torn``.

        Returns:
            Bytes cut off, usually 0.
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


# Opening of a storage by its address.


def open_storage(address: StorageAddress | None, journals: Path) -> Storage:
    """Return the storage at an address.

    Args:
        address: The address; None for journals on this machine.
    """
    if address is None:
        return JournalFolder(journals)
    if address.kind is StorageKind.JOURNAL:
        assert address.path is not None, "a folder of journals has a path"
        return JournalFolder(address.path)
    from autotune.study.storage.database import Database  # imports SQLAlchemy, which takes its time

    return Database(address)
