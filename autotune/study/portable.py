"""Portable file of a study: JSON lines, a header and then a trial each, sorted. Read line by line, within limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import FrozenTrial, TrialState

from autotune import __version__
from autotune.errors import StudyError
from autotune.files import open_regular, read_beginning, replace_durably
from autotune.records import Scalar, TrialRecord
from autotune.space.knob import is_number, same_scalar
from autotune.study.claims import CLAIM
from autotune.study.identity import FRAMEWORK
from autotune.study.optuna_trials import IMPORTED, RECORD, attributes_of, record_of
from autotune.study.pending import FinishedTrial, trial_object
from autotune.study.record import scalars_of
from autotune.study.storage.storage import DAMAGE

VERSION = 1
"""Version of the file's format."""

MOST_BYTES = 1 << 28
MOST_LINE_BYTES = 1 << 23
MOST_TRIALS = 100_000
_KIND = "autotune study"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})")
_HARDWARE = ("cpu_model", "cpu_cores", "memory_bytes", "gpus")
_MOST_FACTS = 100
_LONGEST_FACT = 1000
_DAMAGED = "Export it again where the study is; nothing was imported."


@dataclass(frozen=True, kw_only=True)
class StudyName:
    """Name of a study, taken apart.

    Attributes:
        training: Hash of the training and the class of hardware.
    """

    text: str
    stem: str
    training: str
    frameworks: str
    command: str

    @classmethod
    def of(cls, text: object) -> StudyName | None:
        """Return a name taken apart; None if it is none: it may come out of a file, and becomes part of paths."""
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        return match and cls(text=match[0], stem=match[1], training=match[2], frameworks=match[3], command=match[4])


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of the file.

    Attributes:
        hardware: Facts on the machines of its trials, for people.
        frameworks: Versions of their frameworks, for people.
        product: Version of the program that wrote it.
    """

    study: StudyName
    hardware: Mapping[str, Sequence[Scalar]]
    frameworks: Mapping[str, Sequence[Scalar]]
    trials: int
    product: str = __version__

    @classmethod
    def of(cls, study: StudyName, records: Sequence[TrialRecord]) -> Header:
        """Return the header of these trials, the same in whichever order they are."""
        facts: dict[str, set[Scalar]] = {}
        for record in records:
            for name, value in record.conditions.items():
                if name in _HARDWARE or name.startswith(FRAMEWORK):
                    facts.setdefault(name, set()).add(value)
        listed = {name: sorted(values, key=repr)[:_MOST_FACTS] for name, values in sorted(facts.items())}
        return cls(
            study=study,
            hardware={name: listed[name] for name in _HARDWARE if name in listed},
            frameworks={
                name.removeprefix(FRAMEWORK): values for name, values in listed.items() if name.startswith(FRAMEWORK)
            },
            trials=len(records),
        )

    def line(self) -> str:
        """Return its line, without the line end."""
        return json.dumps(
            {
                "format": _KIND,
                "version": VERSION,
                "autotune": self.product,
                "study": self.study.text,
                "config": self.study.stem,
                "hardware": {name: list(values) for name, values in self.hardware.items()},
                "frameworks": {name: list(values) for name, values in self.frameworks.items()},
                "trials": self.trials,
            }
        )


class PortableFile:
    """Portable file that is open for reading; use it in a ``with`` statement.

    Raises:
        StudyError: It cannot be read, is none, or one of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = open_regular(path.resolve())
        except (OSError, RuntimeError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StudyError(
                f"cannot be read: {ascii(why)[1:-1]}", where=str(path), remedy="Check the path."
            ) from error
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size > MOST_BYTES:
                raise self._error(f"this is no study of ours: {size >> 20} MiB, and {MOST_BYTES >> 20} are the most")
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PortableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def trials(self) -> Iterator[tuple[int, PortableTrial]]:
        """Yield each trial with the offset of its line, checked.

        Raises:
            StudyError: One of them is none, or some are missing.
        """
        self._read_at(0)
        offset, number, count = self._file.tell(), 2, 0
        while line := self._line(number):
            yield offset, self._trial(line, number)
            offset, number, count = self._file.tell(), number + 1, count + 1
        if count != self.header.trials:
            raise self._error(f"it is cut off, or was changed: {self.header.trials} trials are said, {count} are there")

    def trial_at(self, offset: int) -> PortableTrial:
        """Return the trial at an offset that `trials` gave.

        Raises:
            StudyError: It is not there any more.
        """
        return self._trial(self._read_at(offset), None)

    def _read_at(self, offset: int) -> bytes:
        try:
            self._file.seek(offset)
        except OSError as error:
            raise self._error(f"it cannot be read: {error.strerror}") from error
        return self._line(None)

    def _line(self, number: int | None) -> bytes:
        try:
            line = self._file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise self._error(f"it cannot be read: {error.strerror}") from error
        if len(line) > MOST_LINE_BYTES:
            raise self._error("a line is too long", number)
        if line and not line.endswith(b"\n"):
            raise self._error("it is cut off: the last line has no end", number)
        return line

    def _trial(self, line: bytes, number: int | None) -> PortableTrial:
        try:
            return portable_from(_parsed(line))
        except (ValueError, RecursionError) as error:
            said = str(error) if type(error) is ValueError else "no JSON"
            raise self._error(f"this is not a trial: {ascii(said)[1:-1][:120]}", number) from error

    def _header(self) -> Header:
        line = self._line(1)
        said: Any = None
        with suppress(ValueError, RecursionError):
            said = _parsed(line)
        if not isinstance(said, dict) or said.get("format") != _KIND:
            raise self._error(
                "this is not a study that travels", 1, "`autotune study export FILE` writes one where the study is."
            )
        version = said.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._error("its version is no number", 1)
        if version > VERSION:
            by = said.get("autotune")
            raise self._error(
                f"its format, {str(version)[:20]}, is newer than the one known here, {VERSION}",
                1,
                "Update autotune here"
                + (f" to {ascii(by[:40])[1:-1]} or later" if isinstance(by, str) else "")
                + ", or export it there with an older one.",
            )
        name = StudyName.of(said.get("study"))
        if name is None:
            raise self._error("the name in it is not one of a study", 1)
        trials = said.get("trials")
        if not isinstance(trials, int) or isinstance(trials, bool) or not 0 <= trials <= MOST_TRIALS:
            raise self._error(f"the number of its trials is not one from 0 to {MOST_TRIALS}", 1)
        return Header(
            study=name,
            hardware=_facts(said.get("hardware")),
            frameworks=_facts(said.get("frameworks")),
            trials=trials,
            product=str(said.get("autotune"))[:_LONGEST_FACT],
        )

    def _error(self, what: str, number: int | None = None, remedy: str = _DAMAGED) -> StudyError:
        where = str(self.path) if number is None else f"{self.path}:{number}"
        return StudyError(what, where=where, remedy=remedy)


def write_portable_file(path: Path, study: StudyName, trials: Sequence[PortableTrial]) -> None:
    """Write a portable file, in one step; the same trials give the same bytes.

    Raises:
        StudyError: It cannot be written, is too large, or another file is in its place.
    """
    beginning = read_beginning(path, 64)
    if os.path.lexists(path) and not beginning.startswith(json.dumps({"format": _KIND})[:-1].encode()):
        raise StudyError(
            "this file is not an exported study, and is not replaced", where=str(path), remedy="Name another file."
        )
    ordered = sorted(trials, key=lambda trial: trial.order)
    lines = [Header.of(study, [trial.record for trial in ordered]).line(), *(trial.line() for trial in ordered)]
    content = "".join(line + "\n" for line in lines).encode()
    longest = max(len(line) for line in lines)
    if len(trials) > MOST_TRIALS or len(content) > MOST_BYTES or longest >= MOST_LINE_BYTES:
        raise StudyError("this study is too large to travel", where=str(path), remedy="Keep it in a database.")
    try:
        replace_durably(path, content)
    except OSError as error:
        raise StudyError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            remedy="Name a file in a folder of yours, on a disk with free space.",
        ) from error


def _parsed(line: bytes) -> Any:
    return json.loads(line.decode(), parse_constant=_no_constant, object_pairs_hook=_without_doubles)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _facts(said: object) -> Mapping[str, Sequence[Scalar]]:
    if not isinstance(said, dict):
        return {}
    return {
        name[:_LONGEST_FACT]: [value for value in values[:_MOST_FACTS] if isinstance(value, str | int | float | None)]
        for name, values in list(said.items())[:_MOST_FACTS]
        if isinstance(values, list)
    }


_FOLDERS = re.compile(r"(?<![\w.…])(?:~|[A-Za-z]:)?[/\\](?:[^\s:;,'\"()<>|/\\]+[/\\])+")
_CLAIMED = ("machine", "purpose", "sampler")
_LARGEST = 1e300

Uuid = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]  # a column of Optuna's tables holds 512
Text = Annotated[str, msgspec.Meta(max_length=10_000)]
Short = Annotated[str, msgspec.Meta(max_length=500)]
Instant = Annotated[
    str, msgspec.Meta(pattern=r"^2[01]\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)\Z", max_length=40)
]
Choice = bool | int | Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)] | Text | None
Speed = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]


class _Claim(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a claim says that travels."""

    uuid: Uuid
    machine: Short | msgspec.UnsetType = msgspec.UNSET
    purpose: Short | msgspec.UnsetType = msgspec.UNSET
    sampler: Short | msgspec.UnsetType = msgspec.UNSET


class _Attributes(msgspec.Struct, kw_only=True):
    claim: _Claim = msgspec.field(name=CLAIM)
    record: dict[str, Any] = msgspec.field(name=RECORD)


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Line of a trial in the file."""

    uuid: Uuid
    values: dict[Key, Choice]
    distributions: Annotated[dict[Key, str], msgspec.Meta(max_length=1000)]
    attributes: _Attributes
    score: Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)] | None
    speeds: Annotated[list[Speed], msgspec.Meta(max_length=10_000)]
    started: Instant
    ended: Instant


@dataclass(frozen=True, kw_only=True)
class PortableTrial:
    """Finished trial with its record, as it travels.

    Attributes:
        trial: The trial, its times in UTC, its attributes reduced to what travels.
    """

    trial: FinishedTrial
    record: TrialRecord

    def line(self) -> str:
        """Return its line in the file, without the line end; of two equal trials it is the same."""
        return json.dumps(trial_object(self.trial), sort_keys=True, allow_nan=False)

    @property
    def order(self) -> tuple[str, str]:
        """Key of its place in the file."""
        return self.trial.started.isoformat(timespec="microseconds"), self.trial.uuid

    def imported(self) -> FinishedTrial:
        """Return it as a storage gets it: times are local there, and lists of categories those that it knows."""
        trial = self.trial
        lists = {
            path: distribution_to_json(one)
            for path, one in trial.distributions.items()
            if isinstance(one, CategoricalDistribution)
        }
        marker = {"started": _utc_text(trial.started), "ended": _utc_text(trial.ended), "distributions": lists}
        return replace(
            trial,
            attributes={**trial.attributes, IMPORTED: marker},
            started=_local(trial.started),
            ended=_local(trial.ended),
        )


def portable_of(trial: FrozenTrial) -> PortableTrial | None:
    """Return a trial of a storage as it travels; None for one that has no record: interrupted, or still going on.

    Raises:
        ValueError: It is none of ours, or holds what no trial can; with the reason.
    """
    attributes = trial.user_attrs
    if not trial.state.is_finished() or not isinstance(attributes, Mapping):
        return None
    if RECORD not in attributes and (CLAIM in attributes or "format" not in attributes):
        return None
    if trial.state not in (TrialState.COMPLETE, TrialState.FAIL):
        raise ValueError("a state that is none of a trial's")
    started, ended = trial.datetime_start, trial.datetime_complete
    if started is None or ended is None:
        raise ValueError("no times")
    record = attributes.get(RECORD, attributes)
    if not isinstance(record, Mapping):
        raise ValueError("no record")
    finished = FinishedTrial(
        uuid="",
        values=trial.params,
        distributions=trial.distributions,
        attributes={CLAIM: attributes.get(CLAIM), RECORD: record, IMPORTED: attributes.get(IMPORTED)},
        score=trial.value if trial.state is TrialState.COMPLETE else None,
        speeds=tuple(speed for _, speed in sorted(trial.intermediate_values.items())),
        started=started,
        ended=ended,
    )
    return portable_of_finished(finished)


def portable_of_finished(finished: FinishedTrial) -> PortableTrial:
    """Return a finished trial as it travels: without what is said of processes, and of folders.

    Raises:
        ValueError: It holds what no trial can; with the reason.
    """
    written = finished.attributes.get(RECORD)
    if not isinstance(written, Mapping):
        raise ValueError("no record")
    record = _without_folders(record_of(0, written))
    claim = finished.attributes.get(CLAIM)
    claim = claim if isinstance(claim, Mapping) else {}
    uuid = claim.get("uuid") or finished.uuid or _derived(record)
    marker = finished.attributes.get(IMPORTED)
    marker = marker if isinstance(marker, Mapping) else {}
    lists = marker.get("distributions")
    distributions = {path: distribution_to_json(one) for path, one in finished.distributions.items()}
    if isinstance(lists, Mapping):
        distributions.update({path: text for path, text in lists.items() if path in distributions})
    about = {name: text for name in _CLAIMED if isinstance(text := claim.get(name), str)}
    return portable_from(
        {
            **trial_object(replace(finished, distributions={}, attributes={})),
            "uuid": uuid,
            "distributions": distributions,
            "attributes": {CLAIM: {"uuid": uuid, **about}, RECORD: attributes_of(record)},
            "started": marker.get("started") or _utc_text(finished.started.astimezone(UTC)),
            "ended": marker.get("ended") or _utc_text(finished.ended.astimezone(UTC)),
        }
    )


def portable_from(said: Any) -> PortableTrial:
    """Return the trial that an object of the file describes, checked in all its parts.

    Raises:
        ValueError: It holds what no trial can; with the reason, of one line.
    """
    try:
        return _read(said)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except DAMAGE as error:
        if type(error) is ValueError:
            raise
        raise ValueError("not a trial") from error


def _read(said: Any) -> PortableTrial:
    line = msgspec.convert(said, _Line)
    claim, record = line.attributes.claim, record_of(0, line.attributes.record)
    if claim.uuid != line.uuid:
        raise ValueError("claim: another trial's")
    distributions = {path: _distribution(text) for path, text in line.distributions.items()}
    _check_values(line.values, distributions)
    _check_record(record, line.values)
    about = {name: value for name, value in msgspec.to_builtins(claim).items() if name != "uuid"}
    # The record as the program writes it, without fields that it does not know.
    normal = json.loads(json.dumps(attributes_of(record), allow_nan=False))
    trial = FinishedTrial(
        uuid=line.uuid,
        values=line.values,
        distributions=distributions,
        attributes={CLAIM: {"uuid": line.uuid, **about}, **scalars_of(record, about), RECORD: normal},
        score=line.score,
        speeds=tuple(line.speeds),
        started=_instant(line.started),
        ended=_instant(line.ended),
    )
    if trial.ended < trial.started:
        raise ValueError("ended before it started")
    return PortableTrial(trial=trial, record=record)


def _distribution(text: str) -> BaseDistribution:
    said = json.loads(text)
    name, about = said["name"], said["attributes"]
    if name == "CategoricalDistribution":
        choices = about["choices"]
        if set(about) != {"choices"} or not 0 < len(choices) <= 10_000:
            raise ValueError("distributions: no list of choices")
        return CategoricalDistribution(tuple(_scalars(choices)))
    low, high = about["low"], about["high"]
    if about.get("log") is not False or set(about) != {"low", "high", "log", "step"}:
        raise ValueError("distributions: not those of a knob")
    if not is_number(low) or not is_number(high) or not -_LARGEST <= low <= high <= _LARGEST:
        raise ValueError("distributions: no range")
    # Optuna keeps parameters as floats
    if name == "IntDistribution" and all(isinstance(one, int) and abs(one) <= 1 << 53 for one in (low, high)):
        if about["step"] == 1:
            return IntDistribution(low, high)
    elif name == "FloatDistribution" and about["step"] is None:
        return FloatDistribution(float(low), float(high))
    raise ValueError("distributions: not those of a knob")


def _check_values(values: Mapping[str, Scalar], distributions: Mapping[str, BaseDistribution]) -> None:
    if values.keys() != distributions.keys():
        raise ValueError("values: not those of the distributions")
    for path, value in values.items():
        match distributions[path]:
            case CategoricalDistribution(choices=choices):
                fits = any(same_scalar(value, choice) for choice in choices)
            case IntDistribution(low=low, high=high):
                fits = isinstance(value, int) and is_number(value) and low <= value <= high
            case FloatDistribution(low=low, high=high):
                fits = isinstance(value, int | float) and is_number(value) and low <= value <= high
            case _:
                fits = False
        if not fits:
            raise ValueError(f"{ascii(path)[1:61]}: not within its distribution")


def _check_record(record: TrialRecord, values: Mapping[str, Scalar]) -> None:
    _instant(record.ended_utc)
    msgspec.convert([record.search, record.point, record.detail], list[Text])
    if not all(path.isprintable() for path in msgspec.convert([*record.values, *record.conditions], list[Key])):
        raise ValueError("a key that no config has")
    _scalars([*record.values.values(), *record.conditions.values()])
    if any(path not in record.values or not _same(record.values[path], value) for path, value in values.items()):
        raise ValueError("values: not those of the record")


def _same(one: Scalar, other: Scalar) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float) and is_number(one) and is_number(other):
        return one == other  # a range of floats keeps the integers in it as floats
    return same_scalar(one, other)


def _scalars(values: Any) -> list[Scalar]:
    scalars: list[Scalar] = msgspec.convert(values, list[Choice])
    if any(isinstance(value, int) and abs(value) > _LARGEST for value in scalars):
        raise ValueError("a value that no config has")
    return scalars


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(msgspec.convert(text, Instant)).astimezone(UTC)


def _utc_text(time: datetime) -> str:
    return time.isoformat(timespec="microseconds")


def _local(time: datetime) -> datetime:
    """Return a time as Optuna keeps it: local, without its zone."""
    return time.astimezone().replace(tzinfo=None, fold=0)


def _derived(record: TrialRecord) -> str:
    """Return the UUID of a trial that was written without one, which is the same wherever it is read."""
    return sha256(json.dumps(attributes_of(record), sort_keys=True).encode()).hexdigest()[:32]


def _without_folders(record: TrialRecord) -> TrialRecord:
    """Return a record whose texts name files without their folders, which are a machine's own."""
    checked = record.validation
    if checked is not None:
        checked = replace(checked, broke=_bare(checked.broke), remarks=_bare(checked.remarks))
    return replace(record, detail=_FOLDERS.sub("…/", record.detail), validation=checked)


def _bare(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_FOLDERS.sub("…/", text) for text in texts)
