"""Export of a study into a portable file, and import: the union by UUID, in whichever order files come."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import StudyError
from autotune.study.claims import NOBODY, LeaseWatch
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.pending import FinishedTrial, PendingTrials
from autotune.study.storage.storage import Storage
from autotune.study.travel.portable_file import PortableFile, StudyName, write_portable_file
from autotune.study.travel.portable_trial import PortableTrial, portable_of, portable_of_finished


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
        study: Name of the study.
        added: Number of trials that were added.
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
        study: Its name.
        storage: Where it is kept.
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
        paths: The files, in any order.
        target_of: Returns the study that takes them, or refuses them with a `StudyError`.
        storage: Where it is kept, or will be.
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
