"""Finished trials that the storage does not have yet, in a file of this machine."""

import json
import logging
import os
from pathlib import Path

from optuna.trial import FrozenTrial

from autotune.errors import StudyError
from autotune.files import open_regular, replace_durably
from autotune.study.claims import uuid_of
from autotune.study.entry import line_object, trial_of_line
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import DAMAGE

_FORMAT = 1
_log = logging.getLogger(__name__)


class PendingTrials:
    """File of finished trials that wait for their storage.

    Args:
        path: The file; there is none while nothing waits.
        where: The storage's place: trials that wait for another one are left alone.

    Raises:
        StudyError: It cannot be read or written; from every method.
    """

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where
        self._lock = FileLock(path.with_name(path.name + ".flock"))  # machines may share the folder
        try:
            self.trials = [trial for _, said_where, trial in self._lines() if said_where == where]
        except OSError as error:
            raise self._error(error) from error

    def add(self, trial: FrozenTrial) -> None:
        """Add a trial; it is on disk when this returns."""
        self.trials.append(trial)
        line = json.dumps({"format": _FORMAT, "where": self._where, **line_object(trial), "number": trial.number})
        try:
            with self._lock, open_regular(self._path, append=True, create=True) as file:
                size = file.seek(0, os.SEEK_END)
                is_torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"  # by a crash, or a full disk
                file.write(b"\n" * bool(is_torn) + line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._error(error) from error

    def remove(self, written: FrozenTrial) -> None:
        """Take a trial out that the storage has by now; else it is looked for there before it is written again."""
        uuid = uuid_of(written)
        self.trials = [trial for trial in self.trials if uuid_of(trial) != uuid]
        try:
            with self._lock:
                if lines := [line for line, _, trial in self._lines() if uuid_of(trial) != uuid]:
                    replace_durably(self._path, "".join(line + "\n" for line in lines).encode())
                else:
                    self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._error(error) from error

    def _lines(self) -> list[tuple[str, str, FrozenTrial]]:
        """Return the lines of the file, the storage that each is meant for, and its trial."""
        try:
            with open_regular(self._path) as file:
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                said = json.loads(line)
                if said["format"] != _FORMAT:
                    raise ValueError("another format")
                found.append((line, str(said["where"]), trial_of_line(said)))
            except DAMAGE:  # torn by a crash, or none of ours
                _log.warning("a line of %s that cannot be read is left out", self._path)
        return found

    def _error(self, error: OSError) -> StudyError:
        return StudyError(
            f"trials that wait for their storage cannot be kept: {error.strerror}",
            where=str(self._path),
            remedy="Free some space or mend the permissions, then run the same command again: it goes on.",
        )
