"""Storage format of a trial: JSON attribute of an Optuna trial, and line of a file of trials.

What is read is checked for type and range, and never executed or used as a path.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autotune.config.keys import first_of
from autotune.errors import StudyError, os_errors_as
from autotune.files import open_regular, replace_durably
from autotune.metrics import values_of
from autotune.records import CONDITION_SEPARATORS, FRAMEWORK, Conditions, Purpose, TrialRecord
from autotune.study.claims import CLAIM, Claim, uuid_of
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import DAMAGE, MEMBER_NUMBERS, REPEAT, StoredTrial

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

RECORD = "record"
"""Attribute with the `TrialRecord`."""

IMPORTED = "imported"
"""Attribute of an imported trial with its start in UTC."""

FORMAT = 2
"""Version of the record."""


_LATER = ("data",)  # fields missing from older records of this format


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """Return a trial as written, without its number."""
    attributes = record.as_stored()
    del attributes["number"]
    return {"format": FORMAT, **attributes}


def record_of(number: int, attributes: Mapping[str, Any]) -> TrialRecord:
    """Read a trial.

    Raises:
        ValueError: Another format, or invalid; one line.
    """
    written = dict(attributes)
    if written.get("format") != FORMAT:
        raise ValueError("another format")
    missing = [field.name for field in fields(TrialRecord) if field.name not in {*written, "number", *_LATER}]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    try:
        # lists may be tuples and objects records, but "5" and true aren't numbers
        json.dumps(written, ensure_ascii=False).encode()  # rejects lone surrogates
        conditions = _conditions_of(written["conditions"])
        record = msgspec.convert({**written, "number": number, "conditions": conditions}, TrialRecord)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        # escaped and cut: it may quote the value
        raise ValueError(ascii(f"{place.rstrip('`')}: {what}")[1:-1][:120]) from None
    except (ValueError, RecursionError) as error:
        raise ValueError("unreadable") from error
    if record.measurement and (stages := record.measurement.stages):
        for stage in (stages.data, stages.model):  # the class is shared with the trainer and has no bounds
            times_s = (stages.passed_s, stage.busy_s, stage.input_s, stage.room_s)
            if not all(0.0 <= one <= 1e12 for one in times_s) or not 0 <= stage.batches <= 1 << 53:
                raise ValueError("stages: out of range")
    return record


def _conditions_of(stored: Any) -> Any:
    if not isinstance(stored, Mapping):
        return stored
    rest = dict(stored)
    read = {name: rest.pop(name) for name in stored if name in _NAMED}
    read |= {name: read[name].split(by) for name, by in CONDITION_SEPARATORS.items() if isinstance(read.get(name), str)}
    read["frameworks"] = {name.removeprefix(FRAMEWORK): rest.pop(name) for name in stored if name.startswith(FRAMEWORK)}
    if "gpu_driver" in rest:
        readings = {name: rest.pop(name) for name in stored if _GPU_READING.match(name)}
        driver, why_not = rest.pop("gpu_driver"), rest.pop("gpu_not_measured", None)
        read["gpu"] = {"driver": driver, "readings": readings, "not_measured": why_not}
    return {**read, "further": rest}


_NAMED = {field.name for field in fields(Conditions)} - {"frameworks", "gpu", "further"}
_GPU_READING = re.compile(r"gpu\d+\.")


def written_record(trial: StoredTrial) -> Mapping[str, Any] | None:
    """Return the record in an Optuna trial; None if interrupted or running.

    Raises:
        ValueError: Foreign trial.
    """
    attributes = trial.user_attrs
    if not isinstance(attributes, Mapping):
        raise ValueError("no attributes")
    record = attributes.get(RECORD)
    if not isinstance(record, Mapping) and (record is not None or CLAIM not in attributes):
        raise ValueError("no record")
    return record


def scalars_of(record: TrialRecord, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes for tables and plots, without None: a single null breaks an axis."""
    metrics = values_of(record.measurement) if record.measurement else {}
    attributes = {
        "purpose": record.purpose.value,
        "ending": record.ending.value,
        "validity": record.validity.value,
        "sampler": about.get("sampler"),
        **{name: metrics.get(name) for name in ("samples_per_s", "gpu_utilization", "cv")},
    }
    return {name: value for name, value in attributes.items() if value is not None}


def finished_trial(claim: Claim, record: TrialRecord, *, score: float | None, speeds: Sequence[float]) -> FrozenTrial:
    """Return the Optuna trial of a claim that has just ended."""
    trial = claim.running_trial()
    trial.number = claim.number
    trial.state = state_of(record.purpose, score)
    trial.value, trial.datetime_complete = score, datetime.now()
    trial.user_attrs |= {**scalars_of(record, claim.about), RECORD: attributes_of(record)}
    trial.intermediate_values = dict(enumerate(speeds))
    return trial


def state_of(purpose: object, score: float | None) -> TrialState:
    """Return the Optuna state of a trial: PRUNED for repeats, which would hide all others in other tools' plots."""
    from optuna.trial import TrialState

    if purpose in (Purpose.REPEAT, Purpose.CONFIRM):
        return TrialState.PRUNED
    return TrialState.FAIL if score is None else TrialState.COMPLETE


def line_object(trial: FrozenTrial) -> dict[str, Any]:
    """Return a finished trial as a line, without its number."""
    from optuna.distributions import distribution_to_json

    assert trial.datetime_start is not None
    assert trial.datetime_complete is not None
    return {
        "uuid": uuid_of(trial),
        "values": trial.params,
        "distributions": {path: distribution_to_json(one) for path, one in trial.distributions.items()},
        "attributes": trial.user_attrs,
        "score": trial.value,
        "speeds": [speed for _, speed in sorted(trial.intermediate_values.items())],
        "started": trial.datetime_start.astimezone(UTC).isoformat(),
        "ended": trial.datetime_complete.astimezone(UTC).isoformat(),
    }


def trial_of_line(written: Mapping[str, Any]) -> FrozenTrial:
    """Read a line; an error of `DAMAGE` if it is invalid."""
    from optuna.distributions import json_to_distribution
    from optuna.trial import FrozenTrial

    if written["attributes"][CLAIM]["uuid"] != written["uuid"]:
        raise ValueError("claim: another trial's")
    score = None if written["score"] is None else float(written["score"])
    return FrozenTrial(
        number=-1 if written.get("number") is None else int(written["number"]),
        trial_id=-1,
        state=state_of(written["attributes"].get("purpose"), score),
        value=score,
        datetime_start=local_time(written["started"]),
        datetime_complete=local_time(written["ended"]),
        params=dict(written["values"]),
        distributions={path: json_to_distribution(written["distributions"][path]) for path in written["values"]},
        user_attrs=dict(written["attributes"]),
        system_attrs={},
        intermediate_values=dict(enumerate(map(float, written["speeds"]))),
    )


def utc_text(time: datetime) -> str:
    """Return a time in UTC with microseconds, which sorts as text."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def local_time(text: str) -> datetime:
    """Return a time as Optuna keeps it: local, without zone."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None, fold=0)


_LATE = ("~", "")  # sorts after all known starts
_log = logging.getLogger(__name__)


def starts_of(trials: Sequence[tuple[int, StoredTrial]], *, always: bool = False) -> dict[int, tuple[str, str]]:
    """Return sort keys (start in UTC, UUID) by number of each UUID's first trial; empty if nothing was imported."""
    found: dict[int, tuple[str, str]] = {}
    first: dict[str, int] = {}
    for number, trial in trials:
        uuid = uuid_of(trial) or ""
        marker = trial.user_attrs.get(IMPORTED) if isinstance(trial.user_attrs, Mapping) else None
        always = always or isinstance(marker, Mapping)
        start = marker.get("started") if isinstance(marker, Mapping) else None
        if not isinstance(start, str):
            start = utc_text(trial.datetime_start) if trial.datetime_start else _LATE[0]
        found.setdefault(first.setdefault(uuid, number) if uuid else number, (start, uuid))
    return found if always else {}


def read_records(
    trials: Sequence[tuple[int, StoredTrial]], waiting: Sequence[StoredTrial], where: str
) -> list[tuple[str | None, TrialRecord]]:
    """Return the records of a storage and of the trials waiting for it, by UUID, oldest first.

    Skips foreign trials and later formats (with a warning), and those without a record. A trial has the number of its
    UUID's first Optuna trial; a waiting one the next free number.
    """
    last = max((number for number, _ in trials), default=-1)
    free = itertools.count(last + 1)
    numbers: dict[str | None, int] = {}
    records: dict[str | int, tuple[str | None, TrialRecord]] = {}
    unread: list[str] = []
    for place, trial in (*trials, *((None, late) for late in waiting)):
        uuid = uuid_of(trial)
        number = place if place is not None and uuid is None else numbers.get(uuid)
        if number is None:
            number = numbers[uuid] = next(free) if place is None else place
        try:
            written = written_record(trial)
            if written is not None and (uuid or number) not in records:
                records[uuid or number] = uuid, record_of(number, written)
        except ValueError as error:
            unread.append(f"{number} ({error})")
    if unread:
        _log.warning("ignoring unreadable trials of the record %s: %s", where, first_of(unread, 5))
    found = list(records.values())
    if starts := starts_of(trials):
        found.sort(key=lambda entry: starts.get(entry[1].number, _LATE))
    elif last >= MEMBER_NUMBERS:
        found.sort(key=lambda entry: entry[1].ended_utc)  # stable: keeps the order within an Optuna study
    return found


# Finished trials waiting for their storage


_LINE_FORMAT = 1


class UndeliveredTrials:
    """File of finished trials that wait for their storage; absent if there are none.

    Args:
        where: The storage; trials for others are ignored.

    Raises:
        StudyError: It cannot be read or written; from every method.
    """

    def __init__(self, path: Path, where: str) -> None:
        self._path = path
        self._where = where
        self._lock = FileLock(path.with_name(path.name + ".flock"))  # machines may share the folder
        with self._expected():
            self.trials = [trial for _, target, trial in self._lines() if target == where]

    def add(self, trial: FrozenTrial) -> None:
        """Add a trial, durably."""
        self.trials.append(trial)
        line = json.dumps({"format": _LINE_FORMAT, "where": self._where, **line_object(trial), "number": trial.number})
        with self._expected(), self._lock, open_regular(self._path, append=True, create=True) as file:
            size = file.seek(0, os.SEEK_END)
            is_torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"  # by a crash, or a full disk
            file.write(b"\n" * bool(is_torn) + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self, written: FrozenTrial) -> None:
        uuid = uuid_of(written)
        self.trials = [trial for trial in self.trials if uuid_of(trial) != uuid]
        with self._expected(), self._lock:
            if lines := [line for line, _, trial in self._lines() if uuid_of(trial) != uuid]:
                replace_durably(self._path, "".join(line + "\n" for line in lines).encode())
            else:
                self._path.unlink(missing_ok=True)

    def _lines(self) -> list[tuple[str, str, FrozenTrial]]:
        try:
            with open_regular(self._path) as file:
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                written = json.loads(line)
                if written["format"] != _LINE_FORMAT:
                    raise ValueError("another format")
                found.append((line, str(written["where"]), trial_of_line(written)))
            except DAMAGE:  # torn by a crash, or foreign
                _log.warning("ignoring an unreadable line of %s", self._path)
        return found

    def _expected(self) -> AbstractContextManager[None]:
        what = "cannot keep trials that wait for their storage"
        return os_errors_as(StudyError, what, where=self._path, remedy=REPEAT)
