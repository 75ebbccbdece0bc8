"""Folder of journals: a storage that needs only a disk, with a file per study.

A kernel lock and a check of the last line avoid Optuna's stale locks and files that a torn line makes unreadable.
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
from autotune.errors import StudyError, os_errors_as
from autotune.files import open_regular
from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.lock import FileLock, LockProbe
from autotune.study.storage.storage import (
    DAMAGE,
    MEMBER_NUMBERS,
    REPEAT,
    Connection,
    Storage,
    first_kept,
    member_names,
)

_UNTIL = re.compile(r"\.until-\d{8}T\d{6}Z$")


class JournalFolder:
    """Storage of studies in a folder, which is created with the first study if its parent exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, study: str) -> Path:
        return self._folder / f"{study}.journal"

    def where(self, study: str) -> str:
        return str(self.path(study))

    def latest(self, pattern: str) -> str | None:
        with _expected(self._folder):
            latest = max(self._folder.glob(f"{pattern}.journal"), key=lambda path: path.stat().st_mtime, default=None)
        return latest.stem if latest else None

    def names(self) -> list[str]:
        with _expected(self._folder):
            found = sorted(path.stem for path in self._folder.glob("*.journal"))
        return [name for name in found if not _UNTIL.search(name)]

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Open a journal, creating it if necessary and writable; repair its last line."""
        import optuna  # slow
        from optuna.storages import JournalStorage

        path = self.path(study)
        with _expected(path):
            if not reads_only:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _require_own(path)
            file = JournalFile(path, _lock(path), creates=not reads_only)
            storage = JournalStorage(file)  # type: ignore[arg-type]
            torn_bytes = file.repair()  # after reading all lines before it: damaged files aren't changed
        return Connection(
            storage=storage,
            expected=lambda: _expected(path, file),
            names=partial(optuna.get_all_study_names, storage),
            torn_bytes=torn_bytes,
            lock_probe=partial(LockProbe, path),
        )

    def read(self, study: str) -> tuple[list[tuple[int, JournalTrial]], dict[str, Any]] | None:
        """Read a study's trials by number, and attributes, without Optuna; None if only Optuna can read it."""
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
        """Return nothing: reading every journal is slow."""
        return []

    def archive(self, study: str, clock: Clock) -> None:
        """Append the time to a journal's name."""
        path = self.path(study)
        with _expected(path):
            if os.path.lexists(path):
                path.rename(path.with_name(f"{path.stem}.until-{clock.utc():%Y%m%dT%H%M%SZ}{path.suffix}"))

    def discard(self, study: str, trash: Path) -> None:
        path = self.path(study)
        with _expected(path), _lock(path):  # not during a write
            for end in ("", ".torn"):
                file = path.with_name(path.name + end)
                if os.path.lexists(file):
                    shutil.move(file, trash / file.name)  # works across disks


def _lock(path: Path) -> FileLock:
    # not "<journal>.lock": Optuna's own lock has that name and would wait 30 s
    return FileLock(path.with_name(path.name + ".flock"))


@dataclass(kw_only=True)
class JournalTrial:
    """Trial from a journal."""

    user_attrs: dict[str, Any]
    datetime_start: datetime | None
    is_finished: bool


_IS_FINISHED = {0: False, 1: True, 2: True, 3: True}  # by Optuna's state; 4 is waiting


def _replayed(entries: Iterable[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], list[JournalTrial]]]:
    """Return the attributes and trials of each Optuna study in a journal; an error of `DAMAGE` if it can't be read."""
    studies: dict[str, tuple[dict[str, Any], list[JournalTrial]]] = {}
    by_id: dict[int, tuple[dict[str, Any], list[JournalTrial]]] = {}
    trials: dict[int, JournalTrial] = {}
    for entry in entries:
        operation = entry["op_code"]
        if operation == 0:  # create a study, possibly repeated
            if entry["study_name"] not in studies:
                studies[entry["study_name"]] = by_id[len(by_id)] = {}, []
        elif operation == 2:  # study attribute
            by_id[entry["study_id"]][0].update(entry["user_attr"])
        elif operation == 4:  # create a trial
            start = entry["datetime_start"]
            trials[len(trials)] = trial = JournalTrial(
                user_attrs=entry.get("user_attrs", {}),
                datetime_start=datetime.fromisoformat(start).astimezone().replace(tzinfo=None) if start else None,
                is_finished=_IS_FINISHED[entry.get("state", 0)],
            )
            by_id[entry["study_id"]][1].append(trial)
        elif operation in (6, 7, 8):  # trial state, intermediate value, attribute; ignored after its end
            trial = trials[entry["trial_id"]]
            if operation == 8 and not trial.is_finished:
                trial.user_attrs = {**trial.user_attrs, **entry["user_attr"]}
            elif operation == 6 and not trial.is_finished:
                trial.is_finished = _IS_FINISHED[entry["state"]]
        elif operation not in (3, 9):  # Optuna's system attributes
            raise LookupError(operation)
    return studies


def _require_own(path: Path) -> None:
    owner = path.lstat().st_uid if os.path.lexists(path) else os.geteuid()
    if owner != os.geteuid() and os.geteuid() != 0:
        raise StudyError(
            f"this journal belongs to another user (id {owner})",
            where=str(path),
            remedy="For several users, keep the study in PostgreSQL: --storage postgresql://...",
        )


@contextmanager
def _expected(path: Path, file: JournalFile | None = None) -> Iterator[None]:
    """Sync to disk at the end; raise errors of the disk or other writers as `StudyError`."""
    what = "cannot write the record of this study"
    try:
        with os_errors_as(StudyError, what, where=path, remedy=REPEAT):
            yield
            if file is not None:
                file.sync()
    except _errors() as error:
        # valid JSON lines, but not Optuna's: it trusts its own file
        raise StudyError(
            f"the record of this study is damaged: {type(error).__name__}: {ascii(str(error))[1:101]}",
            where=str(path),
            remedy="Move the file away to start a new study.",
        ) from error


def _errors() -> tuple[type[Exception], ...]:
    import optuna

    return (*DAMAGE, optuna.exceptions.OptunaError)


_REMEDY = "The answer includes all earlier trials. Restore the file or move it away, then run the command again."
_REMEDY_AT_OPENING = "Move the file away to start a new study, or truncate it before that line to keep earlier trials."


class JournalFile:
    """Optuna journal backend on one file that must not be replaced; the lock is held while appending.

    Raises:
        OSError: It cannot be opened, or isn't a regular file.
    """

    def __init__(self, path: Path, lock: FileLock, *, creates: bool = True) -> None:
        self._path = path
        self._lock = lock
        self._offsets = array("Q", [0])  # of each entry, and of the next one
        self._is_synced = True
        with open_regular(path, append=creates, create=creates) as file:
            self._identity_at_opening = _identity(file)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the entries from this one on, without an incomplete last line.

        Raises:
            StudyError: The file was replaced, truncated or damaged.
        """
        number = log_number_from
        with self._opened() as file:
            file.seek(self._offsets[number])
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
                if number == len(self._offsets):
                    self._offsets.append(self._offsets[-1] + len(line))
                yield entry

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append entries, durable after the next `sync`.

        Raises:
            OSError: They cannot be written; the file is unchanged.
        """
        lines = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        with self._lock, self._opened(append=True) as file:
            self._repair_last_line(file)
            size = file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[os.write(file.fileno(), lines) :]
            except OSError:
                # remove a partial line before the next append makes it permanent
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
        self._is_synced = False

    def sync(self) -> None:
        if not self._is_synced:
            with self._opened(append=True) as file:
                os.fsync(file.fileno())
            self._is_synced = True

    def repair(self) -> int:
        """Complete a torn last line if valid, otherwise move it to ``<journal>.torn``; return the bytes removed."""
        with self._opened() as file:
            if _is_whole(file):  # no lock file for readers
                return 0
        with self._lock, self._opened(append=True) as file:
            return self._repair_last_line(file)

    def _repair_last_line(self, file: BinaryIO) -> int:
        if _is_whole(file):
            return 0
        size = file.seek(0, os.SEEK_END)
        file.seek(self._offsets[-1])
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
            raise self._changed(f"can no longer be opened: {error.strerror}") from error
        if _identity(file) == self._identity_at_opening and os.fstat(file.fileno()).st_size >= self._offsets[-1]:
            return file
        replaced = _identity(file) != self._identity_at_opening
        file.close()
        raise self._changed("was replaced by another file" if replaced else "was truncated by another process")

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
    """Parse JSON three times as fast as `json`, the fallback for lone surrogates."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)


# Opening of a storage


def open_storage(address: StorageAddress | None, journals: Path) -> Storage:
    """Return the storage at an address; by default, journals on this machine."""
    if address is None:
        return JournalFolder(journals)
    if address.kind is StorageKind.JOURNAL:
        assert address.path is not None, "a folder of journals has a path"
        return JournalFolder(address.path)
    from autotune.study.storage.database import Database  # imports SQLAlchemy, slow

    return Database(address)
