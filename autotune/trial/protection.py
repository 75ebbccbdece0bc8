"""Protection of the user's files from trials: backups of checkpoints, and what a trial leaves outside its folder.

The keys of a config that say where a trainer writes are redirected in trials (`autotune.config.outputs`). A trainer
with a path hard-coded in its source still overwrites the checkpoints of real training, which shows only afterwards: the
user's existing checkpoints are copied before the trials, checked after each, and restored, and the search goes on;
where there is no copy no further trial is made. A file that others write to as well is left to them, and its copy
stays. A file that was only appended to, or written again with the same content, is not lost.

Other files that a trainer writes without asking the config may make trials affect each other: a checkpoint that the
next trial resumes from, a cache that the first trial fills and the later ones read. They are reported once, and never
deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from autotune.clock import Clock
from autotune.config.outputs import exists, path_of, real_path, redirected_path
from autotune.errors import AutotuneError, TrialError
from autotune.events import Event, OnRemark, TrialEnded, TrialStarted, no_remark
from autotune.files import make_private_folder, open_regular, read_beginning, replace_durably
from autotune.measure.host import files_being_written
from autotune.records import Values
from autotune.trial.execution import Trainer
from autotune.trial.folders import LEAST_FREE_BYTES

MOST_BYTES = 1 << 30
"""Size limit of all copies together; the latest files come first."""

MOST_S = 10.0
"""Time limit after which no further copy is begun."""

_PACKED = r"(?:\.(?:bak|bz2|gz|old|tar|tgz|xz|zip|zst))*"  # `model_best.pth.tar`
_CHECKPOINT = re.compile(
    r".*(?:ckpt|checkpoint).*"
    r"|.*\.(?:data-\d+-of-\d+|distcp|gguf|keras|onnx|pdopt|pdparams|pth|safetensors|tflite|weights)" + _PACKED,
    re.IGNORECASE,
)


# Data have these suffixes too, so a word in the name of the file or its folder must mark it as a checkpoint.
_OR_DATA = re.compile(r".*\.(?:bin|h5|hdf5|index|joblib|msgpack|npz|pb|pickle|pkl|pt|tar|tgz)" + _PACKED, re.IGNORECASE)
_WORD = re.compile(
    r"best|checkpoint|ckpt|epoch|final|last|latest|model|net|optim|save|state|step|variables|weight", re.IGNORECASE
)


class CheckpointBackups:
    """Backups of the files around the trials that have the names of checkpoints; to be used in a ``with`` statement.

    A file that an earlier search's trials have left is none of the user's as long as nobody has touched it since. Files
    in the folders that redirected keys name are watched but not copied, since trials do not write there.

    Args:
        trainer: Tells where a trial can be expected to write.
        clock: Limits the time for looking and copying.
        name: Name of the search, for the folder of the copies.
        remark: Called with sentences for the user on files without a copy, restored or lost, once with each.
    """

    def __init__(self, trainer: Trainer, clock: Clock, *, name: str, remark: OnRemark = no_remark) -> None:
        self._trainer = trainer
        self._clock = clock
        self._cwd = trainer.settings.folder
        self._folders = folders_looked_at(trainer)
        self._above = Path(os.path.commonpath(self._folders))
        self._copies = trainer.state.kept / name
        self._others = trainer.state.kept / f"{name}.written-by-others"
        self._left = trainer.state.kept / "left-by-trials.json"
        self._kept: list[KeptFile] = []
        self._lost: list[KeptFile] = []
        self._why_lost: dict[str, None] = {}
        self._lost_told = 0
        self._told: set[Path] = set()
        self._trial = "the last trial"
        self._remark = remark

    def __enter__(self) -> Self:
        over_s = self._clock.now_s() + MOST_S
        room = min(MOST_BYTES, self._trainer.state.free_bytes() - 2 * LEAST_FREE_BYTES)
        places = {place for _, _, path in self._trainer.outputs() if (place := real_path(path))}
        moved = {place for place in places if not self._cwd.is_relative_to(place)}
        without: list[Path] = []
        for path, about in self._found():
            file = None
            if not is_below(path, moved):
                if about.st_size <= room and self._clock.now_s() < over_s:
                    file = kept(path, self._copies / path.relative_to(self._above))
                if file:
                    room -= about.st_size
                else:
                    without.append(path)
            self._kept.append(file or KeptFile(path=path, stamp=stamp_of(path)))
        if without:
            sentence = (
                f"no room or time for copies beforehand: {names_of(without, self._cwd)}. Move them away if the trainer "
                "may write over them whatever its config says"
            )
            try:
                self._remark(sentence)
            except BaseException:  # nobody listens any more: a broken pipe
                self._discard_all()
                raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._look(self._trial)  # the last trial may have ended without an event
        finally:  # what it says may find nobody who listens
            users = {file.path for file in self._kept}
            left = {path: stamp for path in self._present() if path not in users and (stamp := stamp_of(path))}
            _write_left(self._left, left)
            self._discard_all()

    def after(self, event: Event) -> None:
        """Check the files before a trial and when it has ended.

        Raises:
            TrialError: One is lost.
        """
        if isinstance(event, TrialStarted):
            self._leave_to_others([file for file in self._kept if file.now != file.stamp])
            self._trial = f"trial {event.number}"
        elif isinstance(event, TrialEnded) and (loss := self.loss(f"trial {event.trial.number}")):
            raise loss

    def loss(self, what: str) -> TrialError | None:
        """Restore lost files; return an error for the user about those that cannot be restored.

        Args:
            what: Name of the cause, such as ``trial 3``.

        Returns:
            The error; None if there is no such file, or all of them were reported before.
        """
        self._look(what)
        if len(self._lost) == self._lost_told:
            return None
        self._lost_told = len(self._lost)
        names = names_of([file.path for file in self._lost], self._cwd)
        why = f" and not put back ({', '.join(self._why_lost)})" if self._why_lost else ""
        return TrialError(
            f"while {what} went on, outside its folder: changed or gone{why}: {names}; no further trial is made",
            where=str(self._trainer.config_path),
            remedy=f"{self._way_back()}\nIf a key of the config says where the trainer writes, name it under autotune: "
            "redirect:\nIf only its code does, move such files away first, or search in a copy of the project.",
        )

    def _way_back(self) -> str:
        copied = sum(file.copy is not None for file in self._lost)
        if not copied:
            return "There is no copy: there was no room or time for one beforehand."
        some = "" if copied == len(self._lost) else f" ({copied} of {len(self._lost)}; there was no room for more)"
        command = f"cp -r {shlex.quote(f'{self._copies}/.')} {shlex.quote(str(self._above))}"
        return f"As they were{some}, put back by:  {command}"

    def _look(self, what: str) -> None:
        """Check all files, and restore those that a trial has overwritten or removed."""
        whole: list[KeptFile] = []
        lost: list[KeptFile] = []
        back: list[Path] = []
        others: list[KeptFile] = []
        written: frozenset[tuple[int, int]] | None = None  # asked for only where it matters
        for file in self._kept:
            now = file.now
            if now == file.stamp:
                whole.append(file)
            elif file.copy is None:
                lost.append(file)
            elif file.still_begins_so():
                whole.append(replace(file, stamp=now))
            else:
                written = files_being_written() if written is None else written
                try:
                    whole.append(file.put_back(now, written))
                    back.append(file.path)
                except SomebodyElses:
                    others.append(file)
                except CannotPutBack as reason:
                    self._why_lost[str(reason)] = None
                    lost.append(file)
        # Not before: ^C may come at any moment, and a later look has to find all files here.
        self._kept, self._lost = [*whole, *others], [*self._lost, *lost]
        self._leave_to_others(others)
        self._tell(
            back,
            f"while {what} went on, written over or taken away: {{}}; put back from a copy, as after every trial. If "
            "a key of the config says where the trainer writes, name it in the section: redirect: [KEY]",
        )

    def _leave_to_others(self, files: Sequence[KeptFile]) -> None:
        """Stop watching files that somebody else writes to; their copies are set aside and stay."""
        if not files:
            return
        gone = set(map(id, files))
        self._kept = [file for file in self._kept if id(file) not in gone]
        for copy in (file.copy for file in files if file.copy is not None):
            aside = self._others / copy.relative_to(self._copies)
            with contextlib.suppress(OSError):
                aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                aside.hardlink_to(copy)
                self._discard(copy)
        where = f"; as they were before: {self._others}" if any(file.copy for file in files) else ""
        self._tell(
            [file.path for file in files],
            f"somebody else writes to {{}}: not looked after any more by this search{where}",
        )

    def _tell(self, paths: Sequence[Path], sentence: str) -> None:
        new = [path for path in paths if path not in self._told]
        self._told.update(new)
        if new:
            self._remark(sentence.replace("{}", names_of(new, self._cwd), 1))

    def _discard_all(self) -> None:
        for file in self._kept:
            if file.copy:
                self._discard(file.copy)

    def _discard(self, copy: Path) -> None:
        """Delete a copy, and the folders of copies that become empty."""
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            for folder in copy.parents:
                if folder == self._copies.parent:
                    break
                folder.rmdir()

    def _present(self) -> list[Path]:
        """Return all files around the trials that have the names of checkpoints."""
        files = Snapshot(self._folders, self._trainer.apart, self._clock).files
        return [path for path in files if is_called_a_checkpoint(path)]

    def _found(self) -> list[tuple[Path, os.stat_result]]:
        """Return the user's files that have the names of checkpoints, the latest first."""
        left = _read_left(self._left)
        found = []
        for path in self._present():
            try:
                about = path.lstat()
            except OSError:  # gone meanwhile
                continue
            if stat.S_ISREG(about.st_mode) and (path not in left or left[path] != stamp_of(path)):
                found.append((path, about))
        return sorted(found, key=lambda one: one[1].st_mtime_ns, reverse=True)


def is_called_a_checkpoint(path: Path) -> bool:
    """Return whether a file's name is that of a checkpoint or of a trained model."""
    if _CHECKPOINT.fullmatch(path.name):
        return True
    return bool(_OR_DATA.fullmatch(path.name) and _WORD.search(f"{path.parent.name}/{path.name}"))


# Record of the files that the trials of earlier searches have left, with their stamps: a time alone would not tell them
# from a file that the user puts there meanwhile. What is missing in it, or has a wrong stamp, is the user's.


def _read_left(record: Path) -> dict[Path, Stamp]:
    try:
        data = json.loads(read_beginning(record, 1 << 22) or b"{}")
        return {Path(name): tuple(stamp) for name, stamp in data["files"].items()} if data["format"] == 1 else {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return {}


def _write_left(record: Path, files: Mapping[Path, Stamp]) -> None:
    if not files and not record.exists():
        return
    text = json.dumps({"format": 1, "files": {os.fspath(path): stamp for path, stamp in files.items()}})
    with contextlib.suppress(OSError, ValueError):
        make_private_folder(record.parent)
        replace_durably(record, text.encode())


class CannotPutBack(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Failure to restore a file, which stays as a trial has left it; the text is the reason for people."""


class SomebodyElses(CannotPutBack):
    """Refusal to restore a file that others write to as well: its content may be theirs."""


@dataclass(frozen=True, kw_only=True)
class KeptFile:
    """State of a file before the trials, and its copy.

    Attributes:
        stamp: Metadata that show whether it was changed since; None if the file does not exist.
        copy: Its copy; None if there is none.
        owner: Its user and group; None without a copy.
    """

    path: Path
    stamp: Stamp | None
    copy: Path | None = None
    owner: tuple[int, int] | None = None

    @property
    def now(self) -> Stamp | None:
        return stamp_of(self.path)

    def still_begins_so(self) -> bool:
        """Return whether all its old content is still there, at most with something appended; False without a copy."""
        if self.copy is None:
            return False
        try:
            with open_regular(self.path) as file, open_regular(self.copy) as old:
                while chunk := old.read(1 << 20):
                    if file.read(len(chunk)) != chunk:
                        return False
        except OSError:
            return False
        return True

    def put_back(self, left: Stamp | None, written: Collection[tuple[int, int]] = ()) -> KeptFile:
        """Restore the file from its copy atomically, with its times, its mode, and its owner where that is permitted.

        Args:
            left: The file's stamp when the trial had ended; it must not have been changed since.
            written: Device and inode of each file that is open for writing now that no trial is running.

        Returns:
            The file as it is now.

        Raises:
            SomebodyElses: It was touched since, or is open for writing.
            CannotPutBack: There is no room, or the place may not be written to.
        """
        assert self.copy is not None, "there is something to put back"
        folder = self.path.parent
        beside = folder / f".{secrets.token_hex(6)}.autotune"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.path.realpath(folder) != str(folder):
                raise CannotPutBack("its folder is a link now")
            try:
                _copy(self.copy, beside, owner=self.owner)
                if self.now != left or (left and left[:2] in written):
                    raise SomebodyElses("somebody else writes to it")
                if left is None:
                    os.link(beside, self.path)  # unlike a rename, never over something that has just come
                else:
                    beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)
        except FileExistsError:
            raise SomebodyElses("somebody else writes to it") from None
        except OSError as error:
            raise CannotPutBack(error.strerror or str(error)) from error
        return replace(self, stamp=self.now)


def kept(path: Path, copy: Path) -> KeptFile | None:
    """Copy a file; return None if it cannot be read, is no regular file, changes meanwhile, or the disk is full."""
    stamp = stamp_of(path)
    try:
        about = path.lstat()
        make_private_folder(copy.parent)
        _copy(path, copy)
    except OSError:
        return None
    if stamp is None or stamp_of(path) != stamp:
        copy.unlink()
        return None
    return KeptFile(path=path, stamp=stamp, copy=copy, owner=(about.st_uid, about.st_gid))


MOST_OF_FREE = 0.1
"""Largest share of the free space that the copies may take."""


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """Copy of the user's newest checkpoint.

    Attributes:
        name: Path of the checkpoint, as the config has its folder.
        files: The copied files, each with its path below the folder of a trial's outputs.
    """

    name: str
    files: tuple[tuple[Path, Path], ...]

    def put_into(self, outputs: Path) -> None:
        """Copy the files into a trial's folder of outputs.

        Raises:
            AutotuneError: They cannot be copied; none of them is there then.
        """
        try:
            for copy, below in self.files:
                make_private_folder((outputs / below).parent)
                _copy(copy, outputs / below)
        except OSError as error:
            for _, below in self.files:
                (outputs / below).unlink(missing_ok=True)
            raise AutotuneError(f"{error.strerror or error}", where=os.fspath(outputs)) from error

    def discard(self) -> None:
        for copy, _ in self.files:
            with contextlib.suppress(OSError):
                copy.unlink()
                copy.parent.rmdir()


def copy_newest_checkpoint(trainer: Trainer, into: Path, *, times: int) -> CheckpointCopy | str:
    """Copy the newest checkpoint that lies in a folder which the config names as an output.

    Args:
        trainer: Tells which keys are outputs.
        into: Folder for the copy; made if there is something to copy.
        times: Number of trainings that will get one.

    Returns:
        The copy, or a clause on why there is none; empty where there is no checkpoint.
    """
    newest: tuple[float, Path, Path, str] | None = None
    for _, text, folder in trainer.outputs():
        for path, about in _files(folder):
            if is_called_a_checkpoint(path) and (newest is None or about.st_mtime > newest[0]):
                newest = (about.st_mtime, path, folder, text)
    if newest is None:
        return ""
    written_s, path, folder, text = newest
    chosen = {
        one: about.st_size
        for one, about in _files(path.parent)
        # A checkpoint of several files is written in a minute; a small one says which is the latest.
        if about.st_mtime >= written_s - 60.0 or (one.parent == path.parent and about.st_size <= 1 << 16)
    }
    name = os.fspath(Path(text) / path.relative_to(folder))
    needed, free = sum(chosen.values()) * (times + 1), trainer.state.free_bytes()
    if needed > MOST_OF_FREE * free:
        return (
            f"{times + 1} copies of {name} take {needed / 2**30:.1f} GiB, more than {MOST_OF_FREE:.0%} of the free "
            "space"
        )
    into_outputs = Path(redirected_path(text, Path()))
    copies = {into / str(place): one for place, one in enumerate(chosen)}
    try:
        make_private_folder(into)
        for copy, one in copies.items():
            _copy(one, copy)
    except OSError as error:
        shutil.rmtree(into, ignore_errors=True)
        return f"{name} cannot be copied: {error.strerror or error}"
    files = tuple((copy, into_outputs / one.relative_to(folder)) for copy, one in copies.items())
    return CheckpointCopy(name=name, files=files)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the plain files of a folder and those below, not through links."""
    paths = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    for path in itertools.islice(paths, 20_000):
        with contextlib.suppress(OSError):  # gone meanwhile
            about = path.lstat()
            if stat.S_ISREG(about.st_mode):
                yield path, about


def _copy(path: Path, to: Path, *, owner: tuple[int, int] | None = None) -> None:
    """Copy a regular file with its times; as a reflink where the file system can, for checkpoints may be large.

    Raises:
        OSError: It cannot be done; there is no copy then.
    """
    with open_regular(path) as source, to.open("xb") as copy:
        try:
            left = os.fstat(source.fileno()).st_size
            with contextlib.suppress(OSError):  # between file systems, or on an old one
                while left > 0 and (done := os.copy_file_range(source.fileno(), copy.fileno(), left)):
                    left -= done
            if left:
                source.seek(0)
                copy.seek(0)
                copy.truncate()
                shutil.copyfileobj(source, copy)
            copy.flush()
            if owner is not None:
                with contextlib.suppress(OSError):
                    os.fchown(copy.fileno(), *owner)
            shutil.copystat(path, to, follow_symlinks=False)
            os.fsync(copy.fileno())
        except OSError:
            to.unlink(missing_ok=True)
            raise


TRIALS_LOOKED_AROUND = 2
"""Trials of a search after each of which is looked for side effects: the baseline's first, and the one after it."""


@dataclass(frozen=True, kw_only=True)
class SideEffect:
    """Side effect of one trial: files that it left outside its folder.

    Attributes:
        fills_a_cache: Whether new files are among the trial's data: then this trial did work that later ones skip.
    """

    sentence: str
    fills_a_cache: bool


class SideEffects:
    """Detector of side effects of the trials of a search; made before the first of them.

    Args:
        trainer: Tells where a trial can be expected to write.
        clock: Limits the time of a look.
        is_restored: Whether a file, by its name, is put back by others where a trial changes it: see
            `is_called_a_checkpoint`.
    """

    def __init__(self, trainer: Trainer, clock: Clock, is_restored: Callable[[Path], bool]) -> None:
        self._is_restored = is_restored
        self._cwd = trainer.settings.folder
        self._told: set[Path] = set()  # paths that were reported are not reported again
        self._data = _data_folders(trainer)
        self._snapshot = Snapshot(folders_looked_at(trainer), trainer.apart, clock)

    def since_then(self, what: str, *, looks_for_cache: bool = True) -> SideEffect | None:
        """Return the side effect since the last look; None if there is none.

        Args:
            what: What went on meanwhile, such as ``trial 3``.
            looks_for_cache: Whether new files among the data are taken for a cache.
        """
        traces = self._snapshot.traces().beyond(self._told, self._is_restored)
        if not traces.any:
            return None
        self._told.update(traces.new, traces.changed, traces.gone)
        cache = [path for path in traces.new if looks_for_cache and is_below(path, set(self._data))]
        return SideEffect(sentence=self._sentence(traces, cache, what), fills_a_cache=bool(cache))

    def _sentence(self, traces: SnapshotChanges, cache: Sequence[Path], what: str) -> str:
        parts = [
            f"{how} {names_of(paths, self._cwd)}"
            for how, paths in (("new:", traces.new), ("changed:", traces.changed), ("gone:", traces.gone))
            if paths
        ]
        said = f"while {what} went on, outside its folder: {', '.join(parts)}. autotune takes nothing away there"
        if cache:
            names = names_of(cache, self._cwd)
            said += f"; {names} is taken for a cache, so that trial is not compared with later ones"
        if len(cache) < len(traces.new) + len(traces.changed):
            said += "; where a key says where it goes, name that key in the section: redirect: [KEY]"
        if traces.unseen:
            said += f" (only {MOST_ENTRIES:,} files were looked at, not all below {names_of(traces.unseen, self._cwd)})"
        return said


def folders_looked_at(trainer: Trainer) -> tuple[Path, ...]:
    """Return the folders where a trial may leave files outside its own folder, the most specific first.

    Args:
        trainer: Names the config and its values.
    """
    return *_data_folders(trainer), _beside(trainer), trainer.settings.folder


def names_of(paths: Sequence[Path], cwd: Path) -> str:
    """Format some paths for people: the first few, relative to the working directory, and the number of the others."""
    shown = [str(path.relative_to(cwd) if path.is_relative_to(cwd) else path) for path in paths[:5]]
    more = len(paths) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown)


def folders_named(values: Values, *beside: Path) -> Iterator[Path]:
    """Yield the folders that a config's values name, by themselves or by a file in them, the most specific first.

    Left out are those that the working directory or the user's home lies in: they hold everything.
    """
    found: set[Path] = set()
    for text in {value for value in values.values() if isinstance(value, str) and "://" not in value}:
        for folder in beside:
            named = path_of(text, folder)
            # A word without a slash is a path only if there is something of that name.
            path = real_path(named) if named and ("/" in text or exists(named)) else None
            if path is not None:
                found.add(path if os.path.isdir(path) else path.parent)
    general = [*beside, Path(os.path.expanduser("~"))]  # unlike `Path.home`, as it is where there is no home
    kept = (path for path in found if os.path.isdir(path) and not any(other.is_relative_to(path) for other in general))
    yield from sorted(kept, key=lambda path: (-len(path.parts), path))


def _beside(trainer: Trainer) -> Path:
    return Path(os.path.realpath(trainer.config_path.parent))


def _data_folders(trainer: Trainer) -> tuple[Path, ...]:
    redirected = set(trainer.settings.outputs.redirected)
    named = {path: value for path, value in trainer.settings.scalars.items() if path not in redirected}
    return tuple(folders_named(named, trainer.settings.folder, _beside(trainer)))


MOST_ENTRIES = 20_000
"""Most files and folders in one look."""

LOOK_LIMIT_S = 1.0
"""Longest time of one look."""


# Nothing that a training writes lies in these, and some of them are huge.
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", "site-packages", "node_modules", ".autotune"})
Stamp = tuple[int, ...]


def is_below(path: Path, places: Set[Path]) -> bool:
    """Return whether a path is one of these places, or lies below one."""
    return not places.isdisjoint((path, *path.parents))


@dataclass(frozen=True, kw_only=True)
class SnapshotChanges:
    """Changes between two looks.

    Attributes:
        new: Files and folders that were not there; of a new folder only itself.
        unseen: Folders that could not be looked at whole.
    """

    new: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()
    unseen: tuple[Path, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.new or self.changed or self.gone)

    def beyond(self, known: Set[Path], is_restored: Callable[[Path], bool] = lambda _path: False) -> SnapshotChanges:
        """Return the changes without these paths and everything below them, and without files that are restored."""
        new, changed, gone = (
            tuple(path for path in paths if not is_below(path, known)) for paths in (self.new, self.changed, self.gone)
        )
        changed, gone = (tuple(path for path in paths if not is_restored(path)) for paths in (changed, gone))
        return replace(self, new=new, changed=changed, gone=gone)


@dataclass
class _Folder:
    """Entries of one folder: a stamp for a file, None for a subfolder; `whole` is False if there are more."""

    entries: dict[str, Stamp | None] = field(default_factory=dict)
    whole: bool = True


class Snapshot:
    """Snapshot of some folders, taken when this object is made and again at each later look.

    Args:
        folders: Folders to look at, the most important first; each with everything below it.
        clock: Limits the time of a look.
    """

    def __init__(self, folders: Iterable[Path], apart: Iterable[Path], clock: Clock) -> None:
        # Also the files that this process itself may be writing, such as a log that its output goes to.
        own = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        self._apart = frozenset(map(os.path.realpath, (*map(str, apart), *own)))
        self._roots = tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))
        self._clock = clock
        self._seen = self._look()

    @property
    def files(self) -> Iterator[Path]:
        """Paths at the last look that are no folders."""
        for name, folder in self._seen.items():
            yield from (Path(name, entry) for entry, stamp in folder.entries.items() if stamp is not None)

    def traces(self) -> SnapshotChanges:
        """Take a new look, and return the changes since the last one."""
        before, self._seen = self._seen, self._look()
        new: list[Path] = []
        changed: list[Path] = []
        gone: list[Path] = []
        for name, now in self._seen.items():
            was = before.get(name)
            if was is None:
                continue  # new, and reported with the folder that it is in; or not reached before
            folder = Path(name)
            if was.whole:
                new += (folder / entry for entry in now.entries.keys() - was.entries.keys())
            if now.whole:
                gone += (folder / entry for entry in was.entries.keys() - now.entries.keys())
            changed += (
                folder / entry for entry, stamp in now.entries.items() if was.entries.get(entry, stamp) != stamp
            )
        unseen = {name for seen in (before, self._seen) for name, folder in seen.items() if not folder.whole}
        return SnapshotChanges(
            new=tuple(sorted(new)),
            changed=tuple(sorted(changed)),
            gone=tuple(sorted(gone)),
            unseen=_outermost(unseen, self._roots),
        )

    def _look(self) -> dict[str, _Folder]:
        """Scan every folder that can be reached in time, breadth first: entries near the root matter most."""
        over_s = self._clock.now_s() + LOOK_LIMIT_S
        left = MOST_ENTRIES
        seen: dict[str, _Folder] = {}
        waiting = deque(self._roots)
        while waiting:
            name = waiting.popleft()
            if name in seen or name in self._apart:
                continue
            folder = seen[name] = _Folder()
            try:
                with os.scandir(name) as entries:
                    for entry in entries:
                        if left == 0 or self._clock.now_s() > over_s:
                            folder.whole = False
                            break
                        left -= 1
                        if entry.path in self._apart:
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name in _LEFT_OUT or _is_passed_over(entry.path):
                                continue
                            folder.entries[entry.name] = None
                            waiting.append(entry.path)
                        else:
                            folder.entries[entry.name] = stamp_of(entry) or ()
            except OSError:  # not readable, or gone meanwhile: nothing is known of it
                del seen[name]
        return seen


def _is_passed_over(path: str) -> bool:
    """Return whether a folder is a virtual environment, or the state folder of another member, or was one."""
    state = ("studies", "trials", "searches", "cache", "backups", "kept")
    return os.path.exists(os.path.join(path, "pyvenv.cfg")) or all(os.path.isdir(os.path.join(path, s)) for s in state)


def stamp_of(path: Path | os.DirEntry[str]) -> Stamp | None:
    """Return metadata of a file that change when it is written to or replaced; None if it does not exist."""
    try:
        about = path.stat(follow_symlinks=False)
    except OSError:
        return None
    # ctime too: it cannot be set back, as tools that copy a file with its times do with mtime.
    return about.st_dev, about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _outermost(folders: Iterable[str], roots: Sequence[str]) -> tuple[Path, ...]:
    holding: set[str] = set()
    for folder in folders:
        while folder not in holding:
            holding.add(folder)
            folder = os.path.dirname(folder)
    return tuple(Path(root) for root in roots if root in holding)
