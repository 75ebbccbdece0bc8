"""Studies that travel: their export into a portable file, and its import: the union by UUID, in whichever order.

The file is JSON lines: a header that says what study it is, and each finished trial as Optuna has it, sorted by their
starts. A file is checked in all its parts before anything of it is written.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.trial import FrozenTrial

from autotune import __version__
from autotune.clock import Clock
from autotune.errors import StudyError
from autotune.files import open_regular, read_beginning, replace_durably
from autotune.measure.score import EFFECTIVE_UTILIZATION, Objective
from autotune.records import Scalar, SearchResult, TrialRecord
from autotune.space.knob import is_number, same_scalar
from autotune.space.space import Space
from autotune.study.answer import standing_answers
from autotune.study.claims import CLAIM, LEASE_S, NOBODY, IsGone, LeaseWatch, Owner
from autotune.study.entry import (
    IMPORTED,
    RECORD,
    UndeliveredTrials,
    attributes_of,
    line_object,
    record_of,
    scalars_of,
    trial_of_line,
    utc_text,
    written_record,
)
from autotune.study.identity import FRAMEWORK, frameworks_text
from autotune.study.members import Member
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.record import Study
from autotune.study.storage.storage import DAMAGE, Storage
from autotune.study.summary import answer_of, summarize

VERSION = 1
"""Version of the file's format."""

_MOST_BYTES = 1 << 28
_MOST_LINE_BYTES = 1 << 23
_MOST_TRIALS = 100_000
_KIND = "autotune study"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})")
_HARDWARE = ("cpu_model", "cpu_cores", "memory_bytes", "gpus")
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
    def of(cls, text: object) -> "StudyName | None":
        """Return a name taken apart; None if it is none: it may come out of a file, and becomes part of paths."""
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        return match and cls(text=match[0], stem=match[1], training=match[2], frameworks=match[3], command=match[4])


Uuid = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]  # a column of Optuna's tables holds 512
Text = Annotated[str, msgspec.Meta(max_length=10_000)]
Facts = dict[str, list[bool | int | float | str | None]]
Short = Annotated[str, msgspec.Meta(max_length=500)]
Instant = Annotated[
    str, msgspec.Meta(pattern=r"^2[01]\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)\Z", max_length=40)
]
Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Integer = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Choice = bool | Integer | Number | Text | None
Speed = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]


class Header(msgspec.Struct, kw_only=True):
    """First line of a portable file.

    Attributes:
        hardware: Facts on the machines of its trials, for people.
        frameworks: Versions of their frameworks, for people.
    """

    format: Literal["autotune study"] = "autotune study"
    version: Annotated[int, msgspec.Meta(ge=1)] = VERSION
    autotune: str = __version__
    name: str = msgspec.field(name="study")
    config: str
    hardware: Facts
    frameworks: Facts
    trials: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TRIALS)]

    @property
    def study(self) -> StudyName:
        """The study whose trials they are."""
        name = StudyName.of(self.name)
        assert name is not None, "checked when it was read"
        return name

    @classmethod
    def of(cls, study: StudyName, records: Sequence[TrialRecord]) -> "Header":
        """Return the header of these trials, the same in whichever order they are."""
        facts: dict[str, set[Scalar]] = {}
        for record in records:
            for name, value in record.conditions.items():
                facts.setdefault(name, set()).add(value)
        listed = {name: sorted(values, key=repr)[:100] for name, values in sorted(facts.items())}
        return cls(
            name=study.text,
            config=study.stem,
            hardware={name: listed[name] for name in _HARDWARE if name in listed},
            frameworks={
                name.removeprefix(FRAMEWORK): values for name, values in listed.items() if name.startswith(FRAMEWORK)
            },
            trials=len(records),
        )


@dataclass(frozen=True, kw_only=True)
class PortableTrial:
    """Finished trial with its record, as it travels: without what is said of processes, and of folders.

    Attributes:
        started: Its beginning in UTC.
        line: Its line in the file, without the line end; of two equal trials it is the same.
    """

    uuid: str
    started: str
    record: TrialRecord
    line: str


class PortableFile:
    """Portable file, read and checked.

    Attributes:
        trials: Its trials by UUID, each with its beginning in UTC and its line.

    Raises:
        StudyError: It cannot be read, is none, or one of a newer version; one of its trials is none, or some are
            missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials: dict[str, tuple[str, str]] = {}
        try:
            with open_regular(path.resolve()) as file:
                size = os.fstat(file.fileno()).st_size
                if size > _MOST_BYTES:
                    most = f"{size >> 20} MiB, and {_MOST_BYTES >> 20} are the most"
                    raise self._error(f"this is no study of ours: {most}")
                self.header = self._header(self._line(file, 1))
                while line := self._line(file, len(self.trials) + 2):
                    self._add(line, len(self.trials) + 2)
        except (OSError, RuntimeError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise self._error(f"cannot be read: {ascii(why)[1:-1]}", remedy="Check the path.") from error
        said, there = self.header.trials, len(self.trials)
        if there != said:
            raise self._error(f"it is cut off, or was changed: {said} trials are said, {there} are there")

    def _line(self, file: BinaryIO, number: int) -> bytes:
        line = file.readline(_MOST_LINE_BYTES + 1)
        if len(line) > _MOST_LINE_BYTES:
            raise self._error("a line is too long", number)
        if line and not line.endswith(b"\n"):
            raise self._error("it is cut off: the last line has no end", number)
        return line

    def _add(self, line: bytes, number: int) -> None:
        try:
            trial = _portable_from(msgspec.json.decode(line))
        except (ValueError, RecursionError) as error:
            raise self._error(f"this is not a trial: {ascii(str(error))[1:-1][:120]}", number) from error
        if trial.uuid in self.trials:
            raise self._error(f"trial {trial.uuid} stands there twice", number)
        self.trials[trial.uuid] = trial.started, trial.line

    def _header(self, line: bytes) -> Header:
        said: Any = None
        with suppress(msgspec.DecodeError, RecursionError):
            said = msgspec.json.decode(line)
        if not isinstance(said, dict) or said.get("format") != _KIND:
            raise self._error(
                "this is not a study that travels", 1, "`autotune study export FILE` writes one where the study is."
            )
        version, by = said.get("version"), said.get("autotune")
        if isinstance(version, int) and version > VERSION:
            newer = f" to {ascii(by[:40])[1:-1]} or later" if isinstance(by, str) else ""
            raise self._error(
                f"its format, {str(version)[:20]}, is newer than the one known here, {VERSION}",
                1,
                f"Update autotune here{newer}, or export it there with an older one.",
            )
        try:
            header = msgspec.convert(said, Header)
        except ValueError as error:
            raise self._error(f"its header is damaged: {ascii(str(error))[1:-1][:120]}", 1) from error
        if StudyName.of(header.name) is None:
            raise self._error("the name in it is not one of a study", 1)
        return header

    def _error(self, what: str, number: int | None = None, remedy: str = _DAMAGED) -> StudyError:
        return StudyError(what, where=f"{self.path}:{number}" if number else str(self.path), remedy=remedy)


def _write(path: Path, study: StudyName, trials: Iterable[PortableTrial]) -> None:
    """Write a portable file, in one step; the same trials give the same bytes.

    Raises:
        StudyError: It cannot be written, is too large, or another file is in its place.
    """
    beginning = read_beginning(path, 64)
    if os.path.lexists(path) and not beginning.startswith(json.dumps({"format": _KIND})[:-1].encode()):
        raise StudyError(
            "this file is not an exported study, and is not replaced", where=str(path), remedy="Name another file."
        )
    ordered = sorted(trials, key=lambda trial: (trial.started, trial.uuid))
    header = msgspec.to_builtins(Header.of(study, [trial.record for trial in ordered]))
    lines = [json.dumps(header), *(trial.line for trial in ordered)]
    content = "".join(line + "\n" for line in lines).encode()
    longest = max(map(len, lines))
    if len(ordered) > _MOST_TRIALS or len(content) > _MOST_BYTES or longest >= _MOST_LINE_BYTES:
        raise StudyError("this study is too large to travel", where=str(path), remedy="Keep it in a database.")
    try:
        replace_durably(path, content)
    except OSError as error:
        raise StudyError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            remedy="Name a file in a folder of yours, on a disk with free space.",
        ) from error


# A trial as it travels, and the checks of one that came out of a file.


_CLAIMED = ("uuid", "machine", "purpose", "sampler")
_FOLDERS = re.compile(r"(?<![\w.…])(?:~|[A-Za-z]:)?[/\\](?:[^\s:;,'\"()<>|/\\]+[/\\])+")


class _Attributes(msgspec.Struct, kw_only=True):
    claim: dict[Short, Short] = msgspec.field(name=CLAIM)
    record: dict[str, Any] = msgspec.field(name=RECORD)


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Line of a trial in the file."""

    uuid: Uuid
    values: dict[Key, Choice]
    distributions: dict[Key, str]
    attributes: _Attributes
    score: Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)] | None
    speeds: Annotated[list[Speed], msgspec.Meta(max_length=10_000)]
    started: Instant
    ended: Instant


class _Distribution(msgspec.Struct, forbid_unknown_fields=True):
    name: Literal["CategoricalDistribution", "IntDistribution", "FloatDistribution"]
    attributes: dict[str, Choice | list[Choice]]


def portable_of(trial: FrozenTrial) -> PortableTrial | None:
    """Return a trial of a storage as it travels; None for one that has no record: interrupted, or still going on.

    Raises:
        ValueError: It is none of ours, or holds what no trial can; with the reason.
    """
    written = written_record(trial) if trial.state.is_finished() else None
    if written is None:
        return None
    if trial.datetime_start is None or trial.datetime_complete is None:
        raise ValueError("no times")
    record = _without_folders(record_of(0, written))
    claim, marker = (
        dict(some) if isinstance(some := trial.user_attrs.get(name), Mapping) else {} for name in (CLAIM, IMPORTED)
    )
    claim = {name: text for name in _CLAIMED if isinstance(text := claim.get(name), str)}
    if not claim.get("uuid"):  # it was written without one, and gets one that is the same wherever it is read
        claim["uuid"] = sha256(json.dumps(attributes_of(record), sort_keys=True).encode()).hexdigest()[:32]
    said = line_object(trial)
    lists = marker.get("distributions")
    lists = lists if isinstance(lists, Mapping) else {}
    return _portable_from(
        {
            **said,
            "uuid": claim["uuid"],
            "distributions": {path: lists.get(path, text) for path, text in said["distributions"].items()},
            "attributes": {CLAIM: claim, RECORD: attributes_of(record)},
            "started": marker.get("started") or said["started"],
            "ended": marker.get("ended") or said["ended"],
        }
    )


def _portable_from(said: Any) -> PortableTrial:
    """Return the trial that an object of the file describes, checked in all its parts.

    Raises:
        ValueError: It holds what no trial can; with the reason, of one line.
    """
    try:
        line = msgspec.convert(said, _Line)
        record = record_of(0, line.attributes.record)
        about = {name: text for name, text in line.attributes.claim.items() if name in _CLAIMED}
        distributions = {path: _distribution(text) for path, text in line.distributions.items()}
        if about.get("uuid") != line.uuid:
            raise ValueError("claim: another trial's")
        if line.values.keys() != distributions.keys():
            raise ValueError("values: not those of the distributions")
        _check_values(line.values, distributions, record)
        _check_record(record)
        started, ended = (datetime.fromisoformat(text).astimezone(UTC) for text in (line.started, line.ended))
        if ended < started:
            raise ValueError("ended before it started")
        normal = {
            **msgspec.to_builtins(line),
            "distributions": {path: distribution_to_json(one) for path, one in distributions.items()},
            # The record as the program writes it, without fields that it does not know.
            "attributes": {CLAIM: about, **scalars_of(record, about), RECORD: attributes_of(record)},
            "started": started.isoformat(),
            "ended": ended.isoformat(),
        }
        text = json.dumps(normal, sort_keys=True, allow_nan=False)
    except DAMAGE as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError("not a trial") from error
    return PortableTrial(uuid=line.uuid, started=utc_text(started), record=record, line=text)


def _distribution(text: str) -> BaseDistribution:
    said = msgspec.json.decode(text, type=_Distribution)
    step = 1 if said.name == "IntDistribution" else None
    if said.attributes.get("log") or said.attributes.get("step") != step:
        raise ValueError("distributions: not those of a knob")
    found = json_to_distribution(text)
    if json.loads(distribution_to_json(found)) != json.loads(text):
        raise ValueError("distributions: not as they are written")
    if isinstance(found, IntDistribution) and max(-found.low, found.high) > 1 << 53:
        raise ValueError("distributions: out of range")  # Optuna keeps parameters as floats
    return found


def _check_values(
    values: Mapping[str, Scalar], distributions: Mapping[str, BaseDistribution], record: TrialRecord
) -> None:
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
        recorded = record.values.get(path)
        # A range of floats keeps the integers in it as floats.
        is_same = same_scalar(recorded, value) or (is_number(recorded) and is_number(value) and recorded == value)
        if path not in record.values or not is_same:
            raise ValueError("values: not those of the record")


def _check_record(record: TrialRecord) -> None:
    msgspec.convert(record.ended_utc, Instant)
    datetime.fromisoformat(record.ended_utc)
    msgspec.convert([record.search, record.point, record.detail], list[Text])
    msgspec.convert([*record.values.values(), *record.conditions.values()], list[Choice])
    if not all(path.isprintable() for path in msgspec.convert([*record.values, *record.conditions], list[Key])):
        raise ValueError("a key that no config has")


def _without_folders(record: TrialRecord) -> TrialRecord:
    """Return a record whose texts name files without their folders, which are a machine's own."""
    checked = record.validation
    if checked is not None:
        checked = replace(checked, broke=_bare(checked.broke), remarks=_bare(checked.remarks))
    return replace(record, detail=_FOLDERS.sub("…/", record.detail), validation=checked)


def _bare(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_FOLDERS.sub("…/", text) for text in texts)


def _imported(line: str) -> FrozenTrial:
    """Return a trial as a storage gets it: what no storage keeps as it was is beside it."""
    said = json.loads(line)
    trial = trial_of_line(said)
    ends = {name: utc_text(datetime.fromisoformat(said[name])) for name in ("started", "ended")}
    lists = {
        path: said["distributions"][path]
        for path, one in trial.distributions.items()
        if isinstance(one, CategoricalDistribution)
    }
    trial.user_attrs = {**trial.user_attrs, IMPORTED: {**ends, "distributions": lists}}
    return trial


# Export and import.


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Finished trials of a study as they travel, and what is left out.

    Attributes:
        trials: The trials by UUID, in the order of their numbers.
        interrupted: Number of trials without a record: they were interrupted, or go on.
        unread: Reason for each trial that cannot be read, by its number.
        doubles: Number of further writings of trials that are there already.
    """

    trials: Mapping[str, PortableTrial]
    interrupted: int
    unread: Mapping[int, str]
    doubles: int


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Outcome of an import.

    Attributes:
        known: Number of trials that were there already.
        differing: Number of those that hold something else in the file; they stay as they are here.
    """

    study: str
    added: int
    known: int
    differing: int


def contents_of(study: str, storage: Storage, *, pending: Path | None = None) -> Contents:
    """Read the trials of a study.

    Args:
        pending: File of trials that wait for the storage, see `UndeliveredTrials`.
    """
    opened = _opened(study, storage, reads_only=True)
    try:
        waiting = UndeliveredTrials(pending, storage.where(study)).trials if pending is not None else []
        return opened.expecting(lambda: _contents(opened, waiting))
    finally:
        opened.connection.close()


def _contents(opened: OptunaTrials, waiting: Iterable[FrozenTrial]) -> Contents:
    trials: dict[str, PortableTrial] = {}
    unread: dict[int, str] = {}
    interrupted = doubles = 0
    for number, trial in opened.found():
        try:
            portable = portable_of(trial)
        except ValueError as error:
            unread[number] = ascii(str(error))[1:121]
            continue
        if portable is None:
            interrupted += 1
        elif portable.uuid in trials:
            doubles += 1
        else:
            trials[portable.uuid] = portable
    for finished in waiting:
        with suppress(ValueError):  # the storage will not have it either
            if portable := portable_of(finished):
                trials.setdefault(portable.uuid, portable)
    return Contents(trials=trials, interrupted=interrupted, unread=unread, doubles=doubles)


def export_study(study: str, storage: Storage, path: Path, *, pending: Path | None = None) -> Contents:
    """Write the finished trials of a study into a portable file; return them, and what is left out.

    Raises:
        StudyError: The study cannot be read, has no name that travels, or the file cannot be written.
    """
    name = StudyName.of(study)
    if name is None:
        raise StudyError(f"{study!a} is not a study of a config", remedy="`autotune study list` shows them.")
    contents = contents_of(study, storage, pending=pending)
    _write(path, name, contents.trials.values())
    return contents


def import_files(
    paths: Sequence[Path],
    target_of: Callable[[Sequence[PortableFile]], StudyName],
    storage: Storage,
    *,
    prepare: Callable[[], None] = lambda: None,
) -> Imported:
    """Add the trials of portable files that a study does not have yet.

    All files are read and checked before anything is written. What is added is on disk when this returns; after a crash
    in the middle, the same import adds the rest.

    Args:
        target_of: Returns the study that takes them, or refuses them with a `StudyError`.
        prepare: Called before the first trial is added, e.g. to make the folder that the storage lies in.

    Raises:
        StudyError: A file cannot be read, or is refused; or the storage cannot be written.
    """
    files = [PortableFile(path) for path in paths]
    target = target_of(files).text
    union: dict[str, tuple[str, str]] = {}
    differing = 0
    for file in files:
        for uuid, (started, line) in file.trials.items():
            other = union.setdefault(uuid, (started, line))
            if line != other[1]:
                differing += 1
                union[uuid] = min((started, line), other, key=lambda one: one[1])  # in whichever order files come
    known = contents_of(target, storage).trials if target in storage.names() else {}
    differing += sum(union[uuid][1] != known[uuid].line for uuid in union.keys() & known.keys())
    missing = sorted(union.keys() - known.keys(), key=lambda uuid: (union[uuid][0], uuid))
    if missing:
        prepare()
        opened = _opened(target, storage, reads_only=False)
        try:
            for uuid in missing:
                opened.expecting(partial(opened.add, _imported(union[uuid][1])))
        finally:
            opened.connection.close()
    return Imported(study=target, added=len(missing), known=len(union) - len(missing), differing=differing)


def _opened(study: str, storage: Storage, *, reads_only: bool) -> OptunaTrials:
    return OptunaTrials(study, storage, LeaseWatch(NOBODY.clock, NOBODY.is_gone), reads_only=reads_only)


_LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """Outcome of a repair.

    Attributes:
        interrupted: Number of trials without a record, those that go on included.
        unread: Reason for each trial that cannot be read, by its number.
        doubles: Number of further writings of trials that are there already; readers take one of each.
    """

    trials: int
    torn_bytes: int
    closed: int
    going_on: int
    interrupted: int
    unread: Mapping[int, str]
    doubles: int


def repair_study(
    name: str, storage: Storage, *, clock: Clock, is_gone: IsGone, watching: Callable[[int], None] = lambda _n: None
) -> Repaired:
    """Mend what can be mended in a study.

    A trial whose owner is known to be gone is closed at once. Others are watched for as long as a claim lasts: those
    without a sign of life are closed then.

    Args:
        is_gone: Returns whether the owner of a claim is known to have ended.
        watching: Told the number of trials that are watched, before that begins.
    """
    study = Study(name, storage, owner=Owner(about={}, is_gone=is_gone, clock=clock))
    try:
        closed = study.close_abandoned()
        study.refresh()
        if going_on := len(study.trials_elsewhere()):
            watching(going_on)
            until_s = clock.now_s() + LEASE_S + _LOOK_S
            while going_on and clock.now_s() < until_s:
                clock.wait(_LOOK_S)
                closed += study.close_abandoned()
                study.refresh()
                going_on = len(study.trials_elsewhere())
        torn_bytes = study.torn_bytes
    finally:
        study.close()
    contents = contents_of(name, storage)
    return Repaired(
        trials=len(contents.trials),
        torn_bytes=torn_bytes,
        closed=closed,
        going_on=going_on,
        interrupted=contents.interrupted,
        unread=contents.unread,
        doubles=contents.doubles,
    )


_GIB = 1024**3
_NO_SPACE = Space(knobs=())  # gives labels alone, which are not shown


@dataclass(frozen=True, kw_only=True)
class SearchFacts:
    """Search of a study."""

    name: str
    trials: int
    ended_utc: str
    result: SearchResult | None


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """Study in short."""

    name: str
    trials: int
    endings: Mapping[str, int]
    last_utc: str | None
    hosts: Sequence[str]
    hardware: Sequence[str]
    frameworks: Sequence[str]
    versions: Sequence[str]
    searches: Sequence[SearchFacts]
    answer: SearchResult | None
    members: Sequence[Member]


def describe_study(name: str, storage: Storage, *, objective: Objective | None = None) -> StudyFacts:
    """Describe a study.

    Args:
        objective: Objective of its config; None where that is not known: the usual one.
    """
    study = Study(name, storage, reads_only=True)
    try:
        records, members = study.records(), study.members()
    finally:
        study.close()
    objective = objective or EFFECTIVE_UTILIZATION
    current = [trial for trial in records if trial.shares_code_with(records[-1])]
    stood = standing_answers(records, objective)
    searches = []
    for search in dict.fromkeys(one.search for one in records):
        trials = [one for one in records if one.search == search]
        result = summarize(records, search, _NO_SPACE, objective=objective, stood=stood)
        ended_utc = max(one.ended_utc for one in trials)
        searches.append(SearchFacts(name=search, trials=len(trials), ended_utc=ended_utc, result=result))
    return StudyFacts(
        name=name,
        trials=len(records),
        endings=dict(Counter(one.ending.value for one in records)),
        last_utc=max((one.ended_utc for one in records), default=None),
        hosts=_told(records, "host"),
        hardware=list(dict.fromkeys(_hardware(one) for one in records)),
        frameworks=[text for text in dict.fromkeys(frameworks_text(one.conditions) for one in records) if text],
        versions=_told(records, "autotune"),
        searches=searches,
        answer=answer_of(current, _NO_SPACE, objective=objective),
        members=members,
    )


def _told(records: Sequence[TrialRecord], name: str) -> list[str]:
    return [str(value) for value in dict.fromkeys(one.conditions.get(name) for one in records) if value is not None]


def _hardware(record: TrialRecord) -> str:
    told = record.conditions
    memory = told.get("memory_bytes")
    parts = [
        told.get("gpus") or "no GPU",
        told.get("cpu_model"),
        f"{told['cpu_cores']} cores" if told.get("cpu_cores") else None,
        f"{memory / _GIB:.0f} GiB" if isinstance(memory, int | float) and 0 < memory < 1 << 60 else None,
    ]
    return ", ".join(str(part) for part in parts if part)
