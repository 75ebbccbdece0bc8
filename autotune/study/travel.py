"""Export of a study into a file, and import: the union of trials by UUID, in any order of files.

The file is an Optuna journal with the finished trials, oldest first, and a manifest as study attribute.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, create_trial

from autotune import __version__
from autotune.errors import StudyError, os_errors_as
from autotune.files import open_regular, read_beginning, replace_durably
from autotune.records import FRAMEWORK, Scalar, TrialRecord
from autotune.study.claims import CLAIM, NO_OWNER, LeaseWatch
from autotune.study.entry import (
    IMPORTED,
    RECORD,
    UndeliveredTrials,
    attributes_of,
    local_time,
    record_of,
    scalars_of,
    state_of,
    utc_text,
    written_record,
)
from autotune.study.optuna_trials import OptunaTrials
from autotune.study.storage.journal import JournalFile, JournalFolder
from autotune.study.storage.lock import FileLock
from autotune.study.storage.storage import DAMAGE, Storage, member_names

FORMAT = 1
"""Version of the manifest."""

MANIFEST = "autotune export"
"""Attribute of the exported Optuna study with its `Manifest`."""

_MOST_BYTES = 1 << 28
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})")
_HARDWARE = ("cpu_model", "cpu_cores", "memory_bytes", "gpus")
_EXPORT_AGAIN = "Nothing was imported. Export the study again."


@dataclass(frozen=True, kw_only=True)
class StudyName:
    """Parts of a study's name; `training` also covers the hardware class."""

    text: str
    stem: str
    training: str
    frameworks: str
    command: str

    @classmethod
    def of(cls, text: str) -> "StudyName | None":
        """Parse a name, which becomes part of paths."""
        match = _NAME.fullmatch(text)
        return match and cls(text=match[0], stem=match[1], training=match[2], frameworks=match[3], command=match[4])


class Manifest(msgspec.Struct, kw_only=True):
    """Manifest of an export, with hardware and framework versions for display."""

    format: int = FORMAT
    autotune: str = __version__
    config: str
    hardware: dict[str, list[Scalar]]
    frameworks: dict[str, list[Scalar]]
    trials: int

    @classmethod
    def of(cls, study: StudyName, records: Sequence[TrialRecord]) -> "Manifest":
        facts: dict[str, dict[Scalar, None]] = {}
        for record in records:
            for name, value in record.conditions.as_stored().items():
                facts.setdefault(name, {})[value] = None
        return cls(
            config=study.stem,
            hardware={name: list(facts[name]) for name in _HARDWARE if name in facts},
            frameworks={
                name.removeprefix(FRAMEWORK): list(some) for name, some in facts.items() if name.startswith(FRAMEWORK)
            },
            trials=len(records),
        )


# Trial of an export, and its validation


_CLAIMED = ("uuid", "machine", "purpose", "sampler")
_FOLDERS = re.compile(r"(?<![\w.…])(?:~|[A-Za-z]:)?[/\\](?:[^\s:;,'\"()<>|/\\]+[/\\])+")
_INSTANT = re.compile(r"2[01]\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")

_Uuid = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]  # Optuna's column holds 512
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]
_Integer = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]  # Optuna's tables keep parameters as floats
_Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Choice = bool | _Integer | _Number | _Text | None
_Score = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]
_Speed = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]


@dataclass(frozen=True, kw_only=True)
class PortableTrial:
    """Validated finished trial without facts about processes and folders."""

    uuid: str
    started: str
    record: TrialRecord
    trial: FrozenTrial

    @property
    def text(self) -> str:
        return json.dumps(attributes_of(self.record), sort_keys=True)


def portable_of(trial: FrozenTrial) -> PortableTrial | None:
    """Validate a trial of a storage or export; None without a record.

    Raises:
        ValueError: Foreign or invalid.
    """
    try:
        written = written_record(trial) if trial.state.is_finished() else None
        if written is None:
            return None
        record = _without_folders(record_of(0, written))
        _check(record, trial)
        claim = {name: text for name in _CLAIMED if isinstance(text := trial.user_attrs[CLAIM].get(name), str)}
        if trial.datetime_start is None or trial.datetime_complete is None:
            raise ValueError("times are missing")
        imported = trial.user_attrs.get(IMPORTED)  # Optuna's tables keep times without zone
        start = datetime.fromisoformat(imported["started"]) if imported else trial.datetime_start
        score = msgspec.convert(trial.value, _Score | None)
        portable = create_trial(
            state=state_of(record.purpose, score),
            value=score,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={
                CLAIM: msgspec.convert(claim, dict[str, _Text]),
                **scalars_of(record, claim),
                RECORD: attributes_of(record),
                IMPORTED: {"started": utc_text(start)},
            },
            intermediate_values=msgspec.convert(trial.intermediate_values, dict[int, _Speed]),
        )
        portable.datetime_start, portable.datetime_complete = local_time(utc_text(start)), trial.datetime_complete
        json.dumps(portable.user_attrs, allow_nan=False, ensure_ascii=False).encode()  # rejects lone surrogates
        uuid = msgspec.convert(claim.get("uuid"), _Uuid)
    except ValueError:
        raise
    except DAMAGE as error:
        raise ValueError("not a trial") from error
    return PortableTrial(uuid=uuid, started=utc_text(start), record=record, trial=portable)


def _check(record: TrialRecord, trial: FrozenTrial) -> None:
    if not _INSTANT.fullmatch(record.ended_utc):
        raise ValueError("ended_utc: not a time in UTC")
    datetime.fromisoformat(record.ended_utc)
    msgspec.convert([record.search, record.point, record.detail], list[_Text])
    conditions = record.conditions.as_stored()
    msgspec.convert([*record.values.values(), *conditions.values()], list[_Choice])
    if not all(path.isprintable() for path in msgspec.convert([*record.values, *conditions], list[_Key])):
        raise ValueError("invalid key")
    if any(record.values[path] != value for path, value in trial.params.items()):
        raise ValueError("values differ from the record")
    for one in trial.distributions.values():
        if isinstance(one, CategoricalDistribution):
            msgspec.convert(list(one.choices), list[_Choice])


def _without_folders(record: TrialRecord) -> TrialRecord:
    bare, checked = partial(_FOLDERS.sub, "…/"), record.validation
    if checked is not None:
        checked = replace(checked, broke=tuple(map(bare, checked.broke)), remarks=tuple(map(bare, checked.remarks)))
    return replace(record, detail=bare(record.detail), validation=checked)


# Export


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Finished trials of a study by UUID, oldest first, and the numbers of unfinished and unreadable ones."""

    trials: Mapping[str, PortableTrial]
    interrupted: int
    unread: int


def contents_of(study: str, storage: Storage, *, pending: Path | None = None) -> Contents:
    """Read the trials of a study, and those in the file of `UndeliveredTrials`."""
    opened = _opened(study, storage, reads_only=True)
    try:
        waiting = UndeliveredTrials(pending, storage.where(study)).trials if pending is not None else []
        return opened.expecting(lambda: _contents([*(trial for _, trial in opened.found()), *waiting]))
    finally:
        opened.connection.close()


def _contents(found: Iterable[FrozenTrial]) -> Contents:
    trials: dict[str, PortableTrial] = {}
    interrupted = unread = 0
    for trial in found:
        try:
            if portable := portable_of(trial):
                trials.setdefault(portable.uuid, portable)
            else:
                interrupted += 1
        except ValueError:
            unread += 1
    return Contents(trials=_in_order(trials.values()), interrupted=interrupted, unread=unread)


def _in_order(trials: Iterable[PortableTrial]) -> dict[str, PortableTrial]:
    """Return trials by UUID, oldest first, independent of the order of duplicates."""
    found: dict[str, PortableTrial] = {}
    for trial in sorted(trials, key=lambda one: (one.started, one.uuid, one.text)):
        found.setdefault(trial.uuid, trial)
    return found


def export_study(study: str, storage: Storage, path: Path, *, pending: Path | None = None) -> Contents:
    """Write the finished trials of a study into an Optuna journal, atomically.

    Raises:
        StudyError: The study is unreadable, or the file too large, not writable, or another.
    """
    name = StudyName.of(study)
    if name is None:
        raise StudyError(f"{study!a} is not the name of a study", remedy="Run `autotune study list`.")
    if os.path.lexists(path) and MANIFEST.encode() not in read_beginning(path, 2000):
        raise StudyError(
            "this file is not an exported study and is not overwritten", where=str(path), remedy="Name another file."
        )
    contents = contents_of(study, storage, pending=pending)
    manifest = Manifest.of(name, [one.record for one in contents.trials.values()])
    remedy = "Name a file in a writable folder with free space."
    with os_errors_as(StudyError, "cannot be written", where=path, remedy=remedy), TemporaryDirectory() as folder:
        place = JournalFolder(Path(folder))
        written = _opened(study, place, reads_only=False)
        with written.connection.expected():
            written.note(MANIFEST, msgspec.to_builtins(manifest))
            for one in contents.trials.values():
                written.add(one.trial)
        content = place.path(study).read_bytes()
        if len(content) > _MOST_BYTES:
            raise StudyError("this study is too large for a file", where=str(path), remedy="Keep it in a database.")
        replace_durably(path, content)
    return contents


def _opened(study: str, storage: Storage, *, reads_only: bool) -> OptunaTrials:
    return OptunaTrials(study, storage, LeaseWatch(NO_OWNER.clock, NO_OWNER.is_gone), reads_only=reads_only)


# Import


@dataclass(frozen=True, kw_only=True)
class Export:
    """Validated export."""

    path: Path
    study: StudyName
    manifest: Manifest
    trials: Mapping[str, PortableTrial]


def read_export(path: Path) -> Export:
    """Read and validate an exported study.

    Raises:
        StudyError: Unreadable, damaged, or not an exported study.
    """
    try:
        with open_regular(path.resolve()) as file:
            size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise ValueError(f"{size >> 20} MiB is over the limit of {_MOST_BYTES >> 20} MiB")
        # read only: no lock file
        storage = JournalStorage(JournalFile(path.resolve(), FileLock(path), creates=False))  # type: ignore[arg-type]
        studies = {study.study_name: study for study in storage.get_all_studies()}
        main = next((study for study in studies.values() if MANIFEST in study.user_attrs), None)
        if main is None:
            raise ValueError("the manifest is missing")
        manifest = msgspec.convert(main.user_attrs[MANIFEST], Manifest)
        if manifest.format != FORMAT:
            raise ValueError(f"format {manifest.format}, but autotune {__version__} reads format {FORMAT}")
        name = StudyName.of(main.study_name)
        if name is None:
            raise ValueError("invalid study name")
        members = map(storage.get_study_id_from_name, member_names(name.text, studies))
        contents = [portable_of(trial) for one in members for trial in storage.get_all_trials(one)]
        trials = _in_order(filter(None, contents))
        if len(trials) != manifest.trials:
            raise ValueError(f"truncated: {len(trials)} of {manifest.trials} trials")
    except StudyError as error:
        raise StudyError(error.message, where=error.where, remedy=_EXPORT_AGAIN) from error
    except (*DAMAGE, optuna.exceptions.OptunaError) as error:
        why = ascii(str(error))[1:121] if isinstance(error, ValueError) else type(error).__name__
        raise StudyError(f"not an exported study, or damaged: {why}", where=str(path), remedy=_EXPORT_AGAIN) from error
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StudyError(f"cannot be read: {ascii(why)[1:-1]}", where=str(path), remedy="Check the path.") from error
    return Export(path=path, study=name, manifest=manifest, trials=trials)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Outcome of an import: numbers of trials added, already there, and different from the stored ones."""

    study: str
    added: int
    known: int
    differing: int


def import_files(
    paths: Sequence[Path],
    target_of: Callable[[Sequence[Export]], StudyName],
    storage: Storage,
    *,
    prepare: Callable[[], None] = lambda: None,
) -> Imported:
    """Add the missing trials of exported studies to a study, durably; nothing if a file is rejected.

    Args:
        target_of: Returns the target study, or raises `StudyError`.
        prepare: Called before the first write.
    """
    exports = [read_export(path) for path in paths]
    target = target_of(exports).text
    given = [trial for export in exports for trial in export.trials.values()]
    union = _in_order(given)
    known = contents_of(target, storage).trials if target in storage.names() else {}
    missing = [trial for uuid, trial in union.items() if uuid not in known]
    if missing:
        prepare()
        opened = _opened(target, storage, reads_only=False)
        try:
            for one in missing:
                opened.expecting(partial(opened.add, one.trial))
        finally:
            opened.connection.close()
    kept = {**union, **known}
    differing = sum(trial.text != kept[trial.uuid].text for trial in given)
    return Imported(study=target, added=len(missing), known=len(union) - len(missing), differing=differing)
