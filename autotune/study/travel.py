"""Export of a study into a portable file, and import: the union by UUID, in whichever order files come."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import StudyError
from autotune.measure.score import EFFECTIVE_UTILIZATION, Objective
from autotune.records import SearchResult, TrialRecord
from autotune.space.space import Space
from autotune.study.answer import standing_answers
from autotune.study.claims import LEASE_S, NOBODY, IsGone, LeaseWatch, Owner
from autotune.study.identity import frameworks_text
from autotune.study.members import Member
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.pending import FinishedTrial, PendingTrials
from autotune.study.portable import (
    PortableFile,
    PortableTrial,
    StudyName,
    portable_of,
    portable_of_finished,
    write_portable_file,
)
from autotune.study.record import Study
from autotune.study.storage.storage import Storage
from autotune.study.summary import Stood, answer_of, summarize


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
        pending: File of trials that wait for the storage, see `PendingTrials`.

    Raises:
        StudyError: It cannot be read.
    """
    opened = _opened(study, storage, reads_only=True)
    try:
        waiting = PendingTrials(pending, storage.where(study)).trials if pending is not None else []
        return opened.expecting(lambda: _contents(opened, waiting))
    finally:
        opened.connection.close()


def _contents(opened: OptunaTrials, waiting: Iterable[FinishedTrial]) -> Contents:
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
        elif portable.trial.uuid in trials:
            doubles += 1
        else:
            trials[portable.trial.uuid] = portable
    for finished in waiting:
        try:
            portable = portable_of_finished(finished)
        except ValueError:
            continue  # the storage will not have it either
        trials.setdefault(portable.trial.uuid, portable)
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
    write_portable_file(path, name, list(contents.trials.values()))
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
    with ExitStack() as stack:
        files = [stack.enter_context(PortableFile(path)) for path in paths]
        target = target_of(files).text
        places, clashes = _places(files)
        known, known_lines = _known(target, storage)
        differing = clashes
        for uuid in places.keys() & known:
            file, offset = places[uuid][1:]
            differing += file.trial_at(offset).line() != known_lines[uuid]
        missing = sorted(uuid for uuid in places if uuid not in known)
        missing.sort(key=lambda uuid: places[uuid][0])
        if missing:
            prepare()
            _add(target, storage, ((uuid, *places[uuid][1:]) for uuid in missing))
        return Imported(study=target, added=len(missing), known=len(places) - len(missing), differing=differing)


def _places(files: Sequence[PortableFile]) -> tuple[dict[str, tuple[tuple[str, str], PortableFile, int]], int]:
    """Check all trials; return where each is, with the key of its place in the order, and how many clash."""
    places: dict[str, tuple[tuple[str, str], PortableFile, int]] = {}
    clashes = 0
    for file in files:
        own: set[str] = set()
        for offset, portable in file.trials():
            uuid = portable.trial.uuid
            if uuid in own:
                raise StudyError(
                    f"trial {uuid} stands there twice", where=str(file.path), remedy="Export the study again."
                )
            own.add(uuid)
            if uuid not in places:
                places[uuid] = portable.order, file, offset
                continue
            _, other, there = places[uuid]
            lines = other.trial_at(there).line(), portable.line()
            clashes += lines[0] != lines[1]
            if lines[1] < lines[0]:  # the same one is taken in whichever order the files come
                places[uuid] = portable.order, file, offset
    return places, clashes


def _known(study: str, storage: Storage) -> tuple[set[str], dict[str, str]]:
    """Return the UUIDs of the trials that a study has, and the line of each; nothing of one that is not there."""
    if study not in storage.names():
        return set(), {}
    trials = contents_of(study, storage).trials
    return set(trials), {uuid: one.line() for uuid, one in trials.items()}


def _add(study: str, storage: Storage, places: Iterable[tuple[str, PortableFile, int]]) -> None:
    opened = _opened(study, storage, reads_only=False)
    try:
        for uuid, file, offset in places:
            portable = file.trial_at(offset)
            if portable.trial.uuid != uuid:
                raise StudyError("it was changed meanwhile", where=str(file.path), remedy="Import it again.")
            finished = portable.imported()
            opened.expecting(lambda finished=finished: opened.add_imported(finished))  # type: ignore[misc]
    finally:
        opened.connection.close()


def _opened(study: str, storage: Storage, *, reads_only: bool) -> OptunaTrials:
    return OptunaTrials(study, storage, LeaseWatch(NOBODY.clock, NOBODY.is_gone), reads_only=reads_only)


_LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """Outcome of a repair.

    Attributes:
        torn_bytes: Bytes of a torn last entry that were cut off.
        closed: Number of abandoned trials that were closed.
        going_on: Number of trials that others make.
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

    Raises:
        StudyError: It cannot be read or written.
    """
    study = Study(name, storage, owner=Owner(about={}, is_gone=is_gone, clock=clock))
    try:
        closed = study.close_abandoned()
        study.refresh()
        if going_on := len(study.pending_elsewhere()):
            watching(going_on)
            until_s = clock.now_s() + LEASE_S + _LOOK_S
            while going_on and clock.now_s() < until_s:
                clock.wait(_LOOK_S)
                closed += study.close_abandoned()
                study.refresh()
                going_on = len(study.pending_elsewhere())
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
    """Search of a study.

    Attributes:
        result: Its answer; None if no trial gave numbers.
    """

    name: str
    trials: int
    ended_utc: str
    result: SearchResult | None


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """Study in short.

    Attributes:
        last_utc: End of its last trial; None for no trial.
        hardware: Class of hardware in words, each of several.
        frameworks: Versions of the frameworks in words, each of several.
        versions: Versions of this program that made the trials.
        answer: The answer that counts; None if there is none.
    """

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

    Raises:
        StudyError: It cannot be read.
    """
    study = Study(name, storage, reads_only=True)
    try:
        records, members = study.records(), members_of(study)
    finally:
        study.close()
    objective = objective or EFFECTIVE_UTILIZATION
    current = [trial for trial in records if trial.shares_code_with(records[-1])]
    stood = standing_answers(records, objective)
    searches = [_search(search, records, objective, stood) for search in dict.fromkeys(one.search for one in records)]
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


def members_of(study: Study) -> list[Member]:
    """Return the processes that have worked on a study, who joined first in front."""
    return study.members()


def _search(name: str, records: Sequence[TrialRecord], objective: Objective, stood: Stood) -> SearchFacts:
    trials = [one for one in records if one.search == name]
    return SearchFacts(
        name=name,
        trials=len(trials),
        ended_utc=max(one.ended_utc for one in trials),
        result=summarize(records, name, _NO_SPACE, objective=objective, stood=stood),
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
