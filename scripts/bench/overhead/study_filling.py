"""Filling of studies with made-up trials, many at a time.

To begin and finish 10,000 trials one by one takes most of an hour on a database. So the trials of one search after the
other are begun and finished in a journal in memory, by the same calls that a search makes, and passed on: to a journal
on disk the very entries, in one append; to a database the very rows that Optuna makes of them, in one transaction.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage, RDBStorage
from optuna.trial import FrozenTrial

from autotune.clock import Clock
from autotune.study.claims import Claim
from autotune.study.record import Study
from autotune.study.storage.journal import JournalFile, JournalFolder
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import Connection, Storage
from scripts.bench.overhead.recorded_trials import SPACE, TRIALS_OF_A_SEARCH, MadeUpTrial, made_up_trials


def fill(storages: Sequence[Storage], name: str, count: int) -> Iterator[int]:
    """Add trials to a study in each of some storages, the same ones; yields their number so far.

    Args:
        storages: The storages, in which there is no study of this name.
        name: The study.
        count: Number of trials.

    Raises:
        StudyError: A storage cannot be used.
    """
    trials = made_up_trials(count)
    for first in range(0, count, TRIALS_OF_A_SEARCH):
        made = MemoryJournal()
        study = Study(name, made)
        for trial in islice(trials, TRIALS_OF_A_SEARCH):
            finish(study, begin(study, trial), trial)
        study.close()
        for storage in storages:
            if isinstance(storage, JournalFolder):
                _append(storage, name, made.entries, first)
            else:
                _insert(storage, name, made.trials(name), first)
        yield min(first + TRIALS_OF_A_SEARCH, count)


def begin(study: Study, trial: MadeUpTrial) -> Claim:
    """Begin a trial as a search does."""
    record = trial.record
    return study.begin(record.values, SPACE.choices, search=record.search, purpose=record.purpose.value)


def finish(study: Study, claim: Claim, trial: MadeUpTrial) -> None:
    """Finish a trial as a search does."""
    study.finish(claim, trial.record, score=trial.score, speeds=trial.speeds)


def clear(storage: Storage, name: str) -> None:
    """Delete a study.

    Raises:
        StudyError: The storage cannot be used.
    """
    if isinstance(storage, JournalFolder):
        path = storage.path(name)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".flock").unlink(missing_ok=True)
        return
    connection = storage.connect(name)
    with connection.expected(), _engine(connection).begin() as database:
        tables = _tables(database)
        studies = _study_ids(tables, name)
        trials = sqlalchemy.select(tables["trials"].c.trial_id).where(tables["trials"].c.study_id.in_(studies))
        for table in reversed(list(tables.values())):  # what refers to a trial before the trial
            if "study_id" in table.c:
                database.execute(table.delete().where(table.c.study_id.in_(studies)))
            elif "trial_id" in table.c:
                database.execute(table.delete().where(table.c.trial_id.in_(trials)))
    connection.close()


class MemoryJournal:
    """Storage of one study in a journal in memory; see `Storage`, and `JournalFile` for the methods that Optuna calls.

    Attributes:
        entries: The journal's entries.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def trials(self, study: str) -> list[FrozenTrial]:
        """Return the trials of the study."""
        storage = self.connect(study).storage
        return optuna.load_study(study_name=study, storage=storage).get_trials(deepcopy=False)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the entries from this one on."""
        return iter(self.entries[log_number_from:])

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append entries."""
        self.entries += json.loads(json.dumps(logs))

    def where(self, study: str) -> str:
        """Return the place in words."""
        return "memory"

    def latest(self, pattern: str) -> str | None:
        """Return None: it is not searched."""
        return None

    def names(self) -> list[str]:
        """Return no names: it is not searched."""
        return []

    def discard(self, study: str, trash: Path) -> None:
        """Forget everything."""
        self.entries = []

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Return a connection."""
        return Connection(storage=JournalStorage(self), expected=nullcontext)  # type: ignore[arg-type]

    def attributes(self, name: str) -> list[object]:
        """Return nothing: it is not searched."""
        return []

    def set_aside(self, study: str, clock: Clock) -> None:
        """Make room for a new study."""
        self.entries = []


def _append(folder: JournalFolder, name: str, entries: Sequence[dict[str, Any]], first: int) -> None:
    """Append the entries of some trials to a journal.

    Args:
        folder: The journal's folder.
        name: The study.
        entries: The entries; the first makes the study.
        first: Number of trials that the journal has.
    """
    path = folder.path(name)
    folder.connect(name)
    renumbered = [
        {**entry, "trial_id": entry["trial_id"] + first} if "trial_id" in entry else entry
        for entry in (entries[1:] if first else entries)
    ]
    JournalFile(path, FileLock(path.with_name(path.name + ".flock"))).append_logs(renumbered)


def _insert(storage: Storage, name: str, trials: Sequence[FrozenTrial], first: int) -> None:
    """Insert finished trials into a database, of whose study there are so many."""
    connection = storage.connect(name)
    with connection.expected():
        optuna.create_study(study_name=name, storage=connection.storage, direction="maximize", load_if_exists=True)
        with _engine(connection).begin() as database:
            tables = _tables(database)
            study_id = database.execute(_study_ids(tables, name)).scalar_one()
            rows: list[dict[str, Any]] = [
                {
                    "study_id": study_id,
                    "number": first + trial.number,
                    "state": trial.state.name,
                    "datetime_start": trial.datetime_start,
                    "datetime_complete": trial.datetime_complete,
                }
                for trial in trials
            ]
            new = tables["trials"]
            ids = database.execute(new.insert().returning(new.c.trial_id, sort_by_parameter_order=True), rows).scalars()
            for table, rows in _rows(dict(zip(ids, trials, strict=True))).items():
                database.execute(tables[table].insert(), rows)
    connection.close()


def _rows(trials: dict[int, FrozenTrial]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of some trials by their ids, for each table but that of the trials themselves."""
    return {
        "trial_params": [
            {
                "trial_id": number,
                "param_name": path,
                "param_value": trial.distributions[path].to_internal_repr(value),
                "distribution_json": distribution_to_json(trial.distributions[path]),
            }
            for number, trial in trials.items()
            for path, value in trial.params.items()
        ],
        "trial_values": [
            {"trial_id": number, "objective": 0, "value": trial.value, "value_type": "FINITE"}
            for number, trial in trials.items()
            if trial.value is not None
        ],
        "trial_user_attributes": [
            {"trial_id": number, "key": key, "value_json": json.dumps(value)}
            for number, trial in trials.items()
            for key, value in trial.user_attrs.items()
        ],
        "trial_intermediate_values": [
            {
                "trial_id": number,
                "step": step,
                "intermediate_value": value,
                "intermediate_value_type": "FINITE",
            }
            for number, trial in trials.items()
            for step, value in trial.intermediate_values.items()
        ],
    }


def _engine(connection: Connection) -> sqlalchemy.Engine:
    assert isinstance(connection.storage, RDBStorage), "every other storage is a database"
    return connection.storage.engine


def _tables(database: sqlalchemy.Connection) -> Mapping[str, sqlalchemy.Table]:
    """Return the tables by name, each before those that refer to it."""
    described = sqlalchemy.MetaData()
    described.reflect(database)
    return {table.name: table for table in described.sorted_tables}


def _study_ids(tables: Mapping[str, sqlalchemy.Table], name: str) -> sqlalchemy.Select[tuple[int]]:
    """Return the query for the id of a study; it finds none where there is no such study."""
    studies = tables["studies"]
    return sqlalchemy.select(studies.c.study_id).where(studies.c.study_name == name)
