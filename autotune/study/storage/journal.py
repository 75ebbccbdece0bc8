"""Folder of journals: the storage that needs nothing but a disk, a file for each study.

As Optuna ships its journal, a line torn by a crash and followed by an append makes the file unreadable for
ever, and a stale lock file costs 30 s. A lock that the kernel frees with its holder, and a look at the last
line before the file is opened, avoid both.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import optuna
from optuna.storages import JournalStorage

from autotune.clock import Clock
from autotune.errors import StudyError
from autotune.study.storage.file_lock import FileLock
from autotune.study.storage.journal_file import JournalFile
from autotune.study.storage.lock_probe import LockProbe
from autotune.study.storage.storage import DAMAGE, Connection

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
        """Return the journal's path."""
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
        path = self.path(study)
        # Not "<journal>.lock": that is the name of Optuna's own lock, which would wait 30 s for ours to go.
        lock = FileLock(path.with_name(path.name + ".flock"))
        with _expected(path):
            if not reads_only:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _require_own(path)
            file = JournalFile(path, lock, creates=not reads_only)
            storage = JournalStorage(file)  # type: ignore[arg-type]
            torn_bytes = file.repair()  # once every line before it was read: what is damaged stays as it is
        return Connection(
            storage=storage,
            expected=lambda: _expected(path, file),
            torn_bytes=torn_bytes,
            lock_probe=partial(LockProbe, path),
        )

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
        lock = FileLock(path.with_name(path.name + ".flock"))
        with _expected(path), lock:  # no entry is half written
            for end in ("", ".torn"):
                beside = path.with_name(path.name + end)
                if os.path.lexists(beside):
                    shutil.move(beside, trash / beside.name)  # perhaps onto another disk


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
    except (*DAMAGE, optuna.exceptions.OptunaError) as error:
        # Whole lines of JSON, but not what Optuna wrote: it trusts its own file.
        raise StudyError(
            f"the record of this study is damaged: {type(error).__name__}: {ascii(str(error))[1:101]}",
            where=str(path),
            remedy="Move the file away to start a new study.",
        ) from error
