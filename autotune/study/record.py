"""Record of a study: its trials, kept as Optuna trials.

A trial is claimed with its parameters when it begins, and finished with its score, a few scalar attributes and the
whole `TrialRecord` as one JSON attribute. What was finished is never rewritten. Nothing that is read back is executed
or used as a path: a record holds knob values, metrics and names, each checked for its type.

The choices of a knob that Optuna keeps for good may change with the config. What does not fit into a study then goes
into a further one of the same storage, ``<name>~2``; all of them are read together.
"""

import logging
import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.errors import StudyError
from autotune.metrics import values_of
from autotune.records import Scalar, TrialRecord, Values
from autotune.study.entry import attributes_of, record_of
from autotune.study.journal import JournalLock, repair_journal
from autotune.study.journal_file import JournalFile
from autotune.study.parameters import Distributions, PinningSampler, distribution_of, suggest, united

_NAMED = 5
_CLAIM, _RECORD = "claim", "record"
_FURTHER = 10_000
"""Distance between the first trial numbers of the Optuna studies of one study."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim on a trial that has begun.

    Attributes:
        number: Number that the trial has in the study.
        trial: The Optuna trial, which is RUNNING.
        study: The Optuna study that it belongs to.
    """

    number: int
    trial: Trial
    study: optuna.Study


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
        self._pin = PinningSampler()
        with _expected(path):
            self.torn_bytes = repair_journal(path, lock)
            self._storage = JournalStorage(JournalFile(path, lock))  # type: ignore[arg-type]
            self._studies = [_open(member, self._storage, self._pin) for member in _members(name, self._storage)]
            trials = [study.get_trials(deepcopy=False) for study in self._studies]
            self._known = [_distributions(some) for some in trials]
        numbered = [(number * _FURTHER + trial.number, trial) for number, some in enumerate(trials) for trial in some]
        self._records = _read(numbered, path)

    def records(self) -> list[TrialRecord]:
        """All trials, oldest first."""
        return list(self._records)

    def begin(self, values: Values, choices: Mapping[str, Sequence[Scalar]], **about: Scalar) -> Claim:
        """Claim the next trial; it is on disk when this returns.

        Args:
            values: The point.
            choices: What each knob may be.
            about: What else the claim says.

        Raises:
            StudyError: The journal could not be written.
        """
        wanted = {path: distribution_of(some) for path, some in choices.items()}
        with _expected(self.path):
            place, distributions = self._place_for(wanted)
            study, self._pin.values = self._studies[place], values
            trial = study.ask()
            trial.set_user_attr(
                _CLAIM, {"uuid": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(), **about}
            )
            taken = suggest(trial, distributions)
            if any(taken[path] != value for path, value in values.items()):
                study.tell(trial, state=TrialState.FAIL)
                raise ValueError(f"{values} is not what was taken: {taken}")
        self._known[place] = {**self._known[place], **distributions}
        return Claim(number=place * _FURTHER + trial.number, trial=trial, study=study)

    def finish(
        self, claim: Claim, record: TrialRecord, *, score: float | None = None, speeds: Sequence[float] = ()
    ) -> TrialRecord:
        """Finish a claimed trial; it is on disk when this returns.

        Args:
            claim: Its claim.
            record: The trial.
            score: Its score over the baseline's, 1.0 for the baseline itself; None if it gave no comparable numbers.
            speeds: Its speed over time, in samples per second, at even intervals of its window.

        Returns:
            The record with its number.

        Raises:
            StudyError: The journal could not be written. `records` has the trial all the same.
        """
        written = replace(record, number=claim.number)
        self._records.append(written)  # it was measured: answers from this process include it
        with _expected(self.path):
            for name, value in _scalars(record).items():
                claim.trial.set_user_attr(name, value)
            claim.trial.set_user_attr(_RECORD, attributes_of(record))
            for step, speed in enumerate(speeds):
                claim.trial.report(speed, step)
            claim.study.tell(claim.trial, score, state=TrialState.FAIL if score is None else TrialState.COMPLETE)
        return written

    def abandon(self, claim: Claim) -> None:
        """Give up a claim on a trial that was interrupted, as far as that can be written."""
        with suppress(StudyError), _expected(self.path):
            claim.study.tell(claim.trial, state=TrialState.FAIL)

    def close_abandoned(self) -> int:
        """Close the trials that a search which has ended left RUNNING: they were interrupted.

        To be called by who holds the study.

        Returns:
            Their number.

        Raises:
            StudyError: The journal could not be written.
        """
        with _expected(self.path):
            running = [
                (study, trial)
                for study in self._studies
                for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            ]
            for study, trial in running:
                study.tell(trial.number, state=TrialState.FAIL)
        return len(running)

    def append(self, record: TrialRecord) -> TrialRecord:
        """Append a trial that was not claimed; it is on disk when this returns.

        Returns:
            The record with its number.

        Raises:
            StudyError: The journal could not be written. `records` has the trial all the same.
        """
        try:
            with _expected(self.path):
                study = self._studies[-1]
                study.add_trial(
                    create_trial(
                        state=TrialState.COMPLETE if record.comparable else TrialState.FAIL,
                        value=record.measurement.samples_per_s if record.comparable and record.measurement else None,
                        user_attrs={_RECORD: attributes_of(record)},
                    )
                )
                number = (len(self._studies) - 1) * _FURTHER + len(study.get_trials(deepcopy=False)) - 1
            written = replace(record, number=number)
        except StudyError:
            self._records.append(record)  # as in `finish`
            raise
        self._records.append(written)
        return written

    def _place_for(self, wanted: Distributions) -> tuple[int, Distributions]:
        """Return the Optuna study that takes trials with such parameters, the newest that does, else a new one."""
        for place in reversed(range(len(self._studies))):
            distributions = united(self._known[place], wanted)
            if distributions is not None:
                return place, distributions
        self._studies.append(_open(f"{self.name}~{len(self._studies) + 1}", self._storage, self._pin))
        self._known.append({})
        return len(self._studies) - 1, wanted


def _members(name: str, storage: JournalStorage) -> list[str]:
    """Return the names of the Optuna studies of a study, oldest first: at least its own."""
    found = {study.study_name for study in storage.get_all_studies()}
    further = [f"{name}~{number}" for number in range(2, len(found) + 1)]
    return [name, *(member for member in further if member in found)]


def _distributions(trials: Sequence[FrozenTrial]) -> Distributions:
    """Return the distributions that a study has fixed with its trials."""
    found: dict[str, BaseDistribution] = {}
    for trial in trials:
        for path, distribution in trial.distributions.items():
            found.setdefault(path, distribution)
    return found


def _scalars(record: TrialRecord) -> dict[str, Any]:
    """Return the attributes that tables of trials show."""
    metrics = values_of(record.measurement) if record.measurement else {}
    return {
        "purpose": record.purpose.value,
        "ending": record.ending.value,
        "validity": record.validity.value,
        "samples_per_s": metrics.get("samples_per_s"),
        "gpu_utilization": metrics.get("gpu_utilization"),
        "cv": metrics.get("cv"),
    }


def _open(name: str, storage: JournalStorage, sampler: PinningSampler) -> optuna.Study:
    try:
        return optuna.load_study(
            study_name=name, storage=storage, sampler=sampler
        )  # unlike create_study, it writes nothing
    except KeyError:
        return optuna.create_study(study_name=name, storage=storage, sampler=sampler, direction="maximize")


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


def _read(trials: Sequence[tuple[int, FrozenTrial]], path: Path) -> list[TrialRecord]:
    """Return the records among the Optuna trials by their numbers, oldest first.

    Foreign ones and later formats are left out, which is logged; so are trials that were interrupted, or go on.
    """
    records, unread = [], []
    for number, trial in trials:
        try:
            if not isinstance(trial.user_attrs, Mapping):
                raise ValueError("no attributes")
            attributes = trial.user_attrs.get(_RECORD)
            if attributes is None and _CLAIM in trial.user_attrs:
                continue
            attributes = trial.user_attrs if attributes is None else attributes
            if not isinstance(attributes, Mapping):
                raise ValueError("no attributes")
            records.append(record_of(number, attributes))
        except ValueError as error:
            unread.append(f"{number} ({error})")
    if unread:
        named = ", ".join(unread[:_NAMED]) + (f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else "")
        _log.warning("trials that cannot be read are left out of the record %s: %s", path, named)
    if trials and trials[-1][0] >= _FURTHER:
        records.sort(key=lambda record: record.ended_utc)  # stable: within an Optuna study the order is known
    return records
