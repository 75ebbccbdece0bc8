"""The record of a study: an append-only log of trials, kept as Optuna trials.

One Optuna trial for each trial, written once and never rewritten. Nothing that is read back is executed or used as a
path: a record holds knob values, metrics and names, each checked for its type.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import StudyError
from autotune.records import TrialRecord
from autotune.study.entry import attributes_of, record_of
from autotune.study.journal import JournalLock, repair_journal
from autotune.study.journal_file import JournalFile

_NAMED = 5

_log = logging.getLogger(__name__)


class Study:
    """All trials of one identity, in the order in which they ended.

    Args:
        name: The study's name.
        path: Its journal file; created if it does not exist.

    Raises:
        StudyError: The journal cannot be read or written.
    """

    def __init__(self, name: str, path: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self.path = path
        # Not "<journal>.lock": that is the name of Optuna's own lock, which would wait 30 s for ours to go.
        lock = JournalLock(path.with_name(path.name + ".flock"))
        with _expected(path):
            self.torn_bytes = repair_journal(path, lock)
            storage = JournalStorage(JournalFile(path, lock))  # type: ignore[arg-type]
            self._study = _open(name, storage)
            trials = self._study.get_trials(deepcopy=False)
        self._records = _read(trials, path)

    def records(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return list(self._records)

    @property
    def next_number(self) -> int:
        """Return the number of the next trial.

        Raises:
            StudyError: The journal was replaced, or cannot be read any more.
        """
        with _expected(self.path):
            return len(self._study.get_trials(deepcopy=False))

    def append(self, record: TrialRecord) -> TrialRecord:
        """Append one finished trial; it is on disk when this returns.

        Returns:
            The record with its number.

        Raises:
            StudyError: The journal could not be written and is unchanged. `records` has the trial all the same.
        """
        try:
            with _expected(self.path):
                self._study.add_trial(
                    create_trial(
                        state=TrialState.COMPLETE if record.comparable else TrialState.FAIL,
                        value=record.measurement.samples_per_s if record.comparable and record.measurement else None,
                        user_attrs=attributes_of(record),
                    )
                )
            written = replace(record, number=self.next_number - 1)
        except StudyError:
            self._records.append(record)  # it was measured: answers from this process include it
            raise
        self._records.append(written)
        return written


def _open(name: str, storage: JournalStorage) -> optuna.Study:
    try:
        return optuna.load_study(study_name=name, storage=storage)  # unlike create_study, this writes nothing
    except KeyError:
        return optuna.create_study(study_name=name, storage=storage, direction="maximize")


@contextmanager
def _expected(path: Path) -> Iterator[None]:
    """Turn errors that a disk, or another writer of the journal, can cause into `StudyError`."""
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"the record of this study cannot be written: {error.strerror}",
            where=str(path),
            remedy="Free some space or mend the permissions, then run the same command again: it goes on.",
        ) from error
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RecursionError,
        optuna.exceptions.OptunaError,
    ) as error:
        # Whole lines of JSON, but not what Optuna wrote: it trusts its own file.
        raise StudyError(
            f"the record of this study is damaged: {type(error).__name__}: {ascii(str(error))[1:101]}",
            where=str(path),
            remedy="Move the file away to start a new study.",
        ) from error


def _read(trials: Sequence[FrozenTrial], path: Path) -> list[TrialRecord]:
    """Return the records among the Optuna trials, without foreign ones and later formats, which are logged."""
    records, unread = [], []
    for trial in trials:
        try:
            if not isinstance(trial.user_attrs, Mapping):
                raise ValueError("no attributes")
            records.append(record_of(trial.number, trial.user_attrs))
        except ValueError as error:
            unread.append(f"{trial.number} ({error})")
    if unread:
        named = ", ".join(unread[:_NAMED]) + (f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else "")
        _log.warning("trials that cannot be read are left out of the record %s: %s", path, named)
    return records
