"""The record of a study: an append-only log of runs, kept as Optuna trials.

One trial per run, written once with everything in it and never rewritten. Nothing that is read back is executed
or used as a path: a record gives knob values, metrics and names, each checked for its type.
"""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import TypeAdapter, ValidationError

from autotune.errors import StudyError
from autotune.files import open_regular
from autotune.records import Ending, Measurement, Purpose, RunRecord, Scalar, Validity
from autotune.search.journal import JournalLock, repair_journal

FORMAT = 1
"""Version of the attributes of a run."""

_log = logging.getLogger(__name__)
_values_adapter: TypeAdapter[dict[str, Scalar]] = TypeAdapter(dict[str, Scalar])
_measurement_adapter: TypeAdapter[Measurement] = TypeAdapter(Measurement)


class Study:
    """All runs of one identity, in the order in which they ended.

    Args:
        name: The study's name.
        path: Its journal file; created if it is not there.

    Raises:
        StudyError: The journal cannot be read or written.
    """

    def __init__(self, name: str, path: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self.path = path
        # Not "<journal>.lock": that is the name of Optuna's own lock, which would wait 30 s for ours to go.
        lock = JournalLock(path.with_name(path.name + ".flock"))
        try:
            self.torn_bytes = repair_journal(path, lock)
            open_regular(path, append=True, create=True).close()  # else Optuna makes it, readable for all
            storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))  # type: ignore[arg-type]
            self._study = _open(name, storage)
        except OSError as error:
            raise _cannot_write(path, error) from error
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            # Whole lines of JSON, but not what Optuna wrote: it trusts its own file.
            raise StudyError(
                f"the record of this study is damaged: {type(error).__name__}: {error}",
                where=str(path),
                remedy="Move the file away to start a new study.",
            ) from error
        self._records = [record for trial in self._study.get_trials(deepcopy=False) if (record := _read(trial))]

    def records(self) -> list[RunRecord]:
        """All runs, oldest first."""
        return list(self._records)

    @property
    def next_number(self) -> int:
        """The number that the next run will have."""
        return len(self._study.get_trials(deepcopy=False))

    def append(self, record: RunRecord) -> RunRecord:
        """Writes one finished run; it is on disk when this returns.

        Returns:
            The record with the number that it got.

        Raises:
            StudyError: It could not be written; the journal is as it was.
        """
        size = 0
        try:
            size = self.path.stat().st_size
            self._study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if record.comparable else TrialState.FAIL,
                    value=record.measurement.samples_per_s if record.comparable and record.measurement else None,
                    user_attrs=_attributes(record),
                )
            )
        except OSError as error:
            # Half a line may be there: cut it off again, so that the next append cannot make it permanent.
            with contextlib.suppress(OSError), self.path.open("r+b") as file:
                file.truncate(size)
            raise _cannot_write(self.path, error) from error
        written = replace(record, number=self.next_number - 1)
        self._records.append(written)
        return written


def _open(name: str, storage: JournalStorage) -> optuna.Study:
    try:
        return optuna.load_study(study_name=name, storage=storage)  # unlike create_study, this writes nothing
    except KeyError:
        return optuna.create_study(study_name=name, storage=storage, direction="maximize")


def _cannot_write(path: Path, error: OSError) -> StudyError:
    return StudyError(
        f"the record of this study cannot be written: {error.strerror}",
        where=str(path),
        remedy="Free some space or mend the permissions, then run the same command again: it goes on.",
    )


def _attributes(record: RunRecord) -> dict[str, Any]:
    attributes = asdict(record)
    del attributes["number"]
    return {"format": FORMAT, **attributes}


def _read(trial: FrozenTrial) -> RunRecord | None:
    """A run of the record; None for a trial that is not one of ours, or of a later format."""
    attributes: Mapping[str, Any] = trial.user_attrs
    if attributes.get("format") != FORMAT:
        _log.warning("trial %d is of another format and is left out", trial.number)
        return None
    try:
        measured = attributes["measurement"]
        return RunRecord(
            number=trial.number,
            search=str(attributes["search"]),
            point=str(attributes["point"]),
            values=_values_adapter.validate_python(attributes["values"], strict=True),
            purpose=Purpose(attributes["purpose"]),
            ending=Ending(attributes["ending"]),
            validity=Validity(attributes["validity"]),
            ended_utc=str(attributes["ended_utc"]),
            duration_s=float(attributes["duration_s"]),
            pair=None if attributes["pair"] is None else int(attributes["pair"]),
            measurement=None if measured is None else _measurement_adapter.validate_python(measured),
            detail=str(attributes["detail"]),
            conditions=_values_adapter.validate_python(attributes["conditions"], strict=True),
        )
    except (KeyError, ValueError, TypeError, ValidationError) as error:
        _log.warning("trial %d is not a run that can be read (%s) and is left out", trial.number, error)
        return None
