"""Finished trials that the storage does not have yet, in a file of this machine."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import StudyError
from autotune.files import create_private, open_regular
from autotune.records import Scalar, Values
from autotune.study.claims import CLAIM, Distributions
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import DAMAGE

_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinishedTrial:
    """Finished trial as an Optuna trial holds it.

    Attributes:
        uuid: Its name, whatever its number becomes.
        score: Its score over the baseline's; None if it gave no comparable numbers.
        speeds: Its speed over time, in samples per second.
        started, ended: Local times, as Optuna's are.
        number: Number that the user was told; None if there was none.
    """

    uuid: str
    values: Values
    distributions: Distributions
    attributes: Mapping[str, Any]
    score: float | None
    speeds: tuple[float, ...]
    started: datetime
    ended: datetime
    number: int | None = None

    @property
    def state(self) -> TrialState:
        return TrialState.FAIL if self.score is None else TrialState.COMPLETE

    def frozen(self) -> FrozenTrial:
        """Return it as an Optuna trial that is to be added."""
        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=self.state,
            value=self.score,
            datetime_start=self.started,
            datetime_complete=self.ended,
            params=dict(self.values),
            distributions=dict(self.distributions),
            user_attrs=dict(self.attributes),
            system_attrs={},
            intermediate_values=dict(enumerate(self.speeds)),
        )


class PendingTrials:
    """File of finished trials that wait for their storage.

    Args:
        path: The file; there is none while nothing waits.
        where: The storage's place: trials that wait for another one are left alone.
    """

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where
        self._lock = FileLock(path.with_name(path.name + ".flock"))  # machines may share the folder
        self.trials: list[FinishedTrial] = self._read()

    def add(self, trial: FinishedTrial) -> None:
        """Add a trial; it is on disk when this returns.

        Raises:
            StudyError: It cannot be written.
        """
        self.trials.append(trial)
        try:
            with self._lock, open_regular(self._path, append=True, create=True) as file:
                size = file.seek(0, os.SEEK_END)
                is_torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"  # by a crash, or a full disk
                file.write(b"\n" * bool(is_torn) + _line(trial, self._where).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._error(error) from error

    def remove(self, written: FinishedTrial) -> None:
        """Take a trial out that the storage has by now.

        Raises:
            StudyError: The file cannot be written; it is looked for in the storage before it is written again.
        """
        self.trials = [trial for trial in self.trials if trial.uuid != written.uuid]
        try:
            with self._lock:
                lines = [line for line, _, trial in self._lines() if trial.uuid != written.uuid]
                if lines:
                    replacement = self._path.with_name(self._path.name + ".new")
                    create_private(replacement, "".join(line + "\n" for line in lines).encode())
                    replacement.replace(self._path)
                else:
                    self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._error(error) from error

    def _read(self) -> list[FinishedTrial]:
        try:
            return [trial for _, where, trial in self._lines() if where == self._where]
        except OSError as error:
            raise self._error(error) from error

    def _lines(self) -> list[tuple[str, str, FinishedTrial]]:
        """Return the lines of the file, the storage that each is meant for, and its trial."""
        try:
            with open_regular(self._path) as file:
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append((line, *_parsed(line)))
            except DAMAGE:  # torn by a crash, or none of ours
                _log.warning("a line of %s that cannot be read is left out", self._path)
        return found

    def _error(self, error: OSError) -> StudyError:
        return StudyError(
            f"trials that wait for their storage cannot be kept: {error.strerror}",
            where=str(self._path),
            remedy="Free some space or mend the permissions, then run the same command again: it goes on.",
        )


def trial_object(trial: FinishedTrial) -> dict[str, Any]:
    """Return a trial as JSON has it; its number is not part of it."""
    return {
        "uuid": trial.uuid,
        "values": dict(trial.values),
        "distributions": {path: distribution_to_json(one) for path, one in trial.distributions.items()},
        "attributes": dict(trial.attributes),
        "score": trial.score,
        "speeds": list(trial.speeds),
        "started": trial.started.isoformat(),
        "ended": trial.ended.isoformat(),
    }


def trial_of(said: Mapping[str, Any]) -> FinishedTrial:
    """Return the trial that was written so; one of `DAMAGE` where it is none."""
    if said["attributes"][CLAIM]["uuid"] != said["uuid"]:
        raise ValueError("another trial's claim")
    values: dict[str, Scalar] = dict(said["values"])
    return FinishedTrial(
        uuid=str(said["uuid"]),
        values=values,
        distributions={path: json_to_distribution(said["distributions"][path]) for path in values},
        attributes=dict(said["attributes"]),
        score=None if said["score"] is None else float(said["score"]),
        speeds=tuple(map(float, said["speeds"])),
        started=datetime.fromisoformat(said["started"]),
        ended=datetime.fromisoformat(said["ended"]),
        number=None if said.get("number") is None else int(said["number"]),
    )


def _line(trial: FinishedTrial, where: str) -> str:
    return json.dumps({"format": _FORMAT, "where": where, **trial_object(trial), "number": trial.number})


def _parsed(line: str) -> tuple[str, FinishedTrial]:
    """Return what a line says, and the storage that it is meant for; ValueError and the like where it says nothing."""
    said = json.loads(line)
    if said["format"] != _FORMAT:
        raise ValueError("another format")
    return str(said["where"]), trial_of(said)
