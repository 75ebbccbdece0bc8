"""Protection of the user's files from trials: checkpoint backups, and detection of side effects.

Output paths in config keys are redirected (`autotune.config.outputs`), hard-coded ones are not. So checkpoints are
copied before the trials, and checked and restored after each; without a copy, a loss ends the search. Other files that
trials leave, such as caches, are reported once and never deleted.
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
"""Size limit of all copies; the latest files come first."""

MOST_S = 10.0
"""Time after which no further copy is started."""

_PACKED = r"(?:\.(?:bak|bz2|gz|old|tar|tgz|xz|zip|zst))*"  # `model_best.pth.tar`
_CHECKPOINT = re.compile(
    r".*(?:ckpt|checkpoint).*"
    r"|.*\.(?:data-\d+-of-\d+|distcp|gguf|keras|onnx|pdopt|pdparams|pth|safetensors|tflite|weights)" + _PACKED,
    re.IGNORECASE,
)


# Data files have these suffixes too: a word in the name of the file or folder must mark a checkpoint.
_OR_DATA = re.compile(r".*\.(?:bin|h5|hdf5|index|joblib|msgpack|npz|pb|pickle|pkl|pt|tar|tgz)" + _PACKED, re.IGNORECASE)
_WORD = re.compile(
    r"best|checkpoint|ckpt|epoch|final|last|latest|model|net|optim|save|state|step|variables|weight", re.IGNORECASE
)


class CheckpointBackups:
    """Backups of checkpoint files around the trials, for a ``with`` statement.

    Files in redirected folders are watched but not copied: trials don't write there.

    Args:
        name: Of the search, for the folder of the copies.
        remark: Called with sentences for the user.
    """

    def __init__(self, trainer: Trainer, clock: Clock, *, name: str, remark: OnRemark = no_remark) -> None:
        self._trainer = trainer
        self._clock = clock
        self._cwd = trainer.settings.folder
        self._folders = watched_folders(trainer)
        self._above = Path(os.path.commonpath(self._folders))
        self._copies = trainer.state.kept / name
        self._others = trainer.state.kept / f"{name}.written-by-others"
        self._left = trainer.state.kept / "left-by-trials.json"
        self._watched: list[WatchedFile] = []
        self._lost: list[WatchedFile] = []
        self._why_lost: dict[str, None] = {}
        self._n_lost_reported = 0
        self._reported: set[Path] = set()
        self._trial = "the last trial"
        self._remark = remark

    def __enter__(self) -> Self:
        over_s = self._clock.now_s() + MOST_S
        left_bytes = min(MOST_BYTES, self._trainer.state.free_bytes() - 2 * LEAST_FREE_BYTES)
        places = {place for _, _, path in self._trainer.outputs() if (place := real_path(path))}
        moved = {place for place in places if not self._cwd.is_relative_to(place)}
        without: list[Path] = []
        for path, about in self._found():
            file = None
            if not is_below(path, moved):
                if about.st_size <= left_bytes and self._clock.now_s() < over_s:
                    file = back_up(path, self._copies / path.relative_to(self._above))
                if file:
                    left_bytes -= about.st_size
                else:
                    without.append(path)
            self._watched.append(file or WatchedFile(path=path, stamp=stamp_of(path)))
        if without:
            sentence = (
                f"no space or time for backup copies: {names_of(without, self._cwd)}. Move them away if the trainer "
                "may overwrite them regardless of its config"
            )
            try:
                self._remark(sentence)
            except BaseException:  # a broken pipe
                self._discard_all()
                raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._scan(self._trial)  # the last trial may have ended without an event
        finally:  # a remark may raise, for a broken pipe
            users = {file.path for file in self._watched}
            left = {path: stamp for path in self._present() if path not in users and (stamp := stamp_of(path))}
            _write_left(self._left, left)
            self._discard_all()

    def after(self, event: Event) -> None:
        """Check the files before and after a trial; raise TrialError for a lost file."""
        if isinstance(event, TrialStarted):
            self._stop_watching([file for file in self._watched if file.now != file.stamp])
            self._trial = f"trial {event.number}"
        elif isinstance(event, TrialEnded) and (loss := self.loss(f"trial {event.trial.number}")):
            raise loss

    def loss(self, what: str) -> TrialError | None:
        """Restore the files lost during ``trial 3`` or the like; return a new error if some cannot be restored."""
        self._scan(what)
        if len(self._lost) == self._n_lost_reported:
            return None
        self._n_lost_reported = len(self._lost)
        names = names_of([file.path for file in self._lost], self._cwd)
        why = f" and not restored ({', '.join(self._why_lost)})" if self._why_lost else ""
        return TrialError(
            f"during {what}, outside its folder: changed or gone{why}: {names}; no further trial is run",
            where=str(self._trainer.config_path),
            remedy=f"{self._how_to_restore()}\nIf a config key sets the path, list it under autotune: redirect:\n"
            "If only the code does, move such files away first, or search in a copy of the project.",
        )

    def _how_to_restore(self) -> str:
        copied = sum(file.copy is not None for file in self._lost)
        if not copied:
            return "There is no copy: no space or time for one."
        some = "" if copied == len(self._lost) else f" ({copied} of {len(self._lost)}; no space for more)"
        command = f"cp -r {shlex.quote(f'{self._copies}/.')} {shlex.quote(str(self._above))}"
        return f"Restore the copies{some}:  {command}"

    def _scan(self, what: str) -> None:
        whole: list[WatchedFile] = []
        lost: list[WatchedFile] = []
        back: list[Path] = []
        others: list[WatchedFile] = []
        written: frozenset[tuple[int, int]] | None = None  # queried only if needed
        for file in self._watched:
            now = file.now
            if now == file.stamp:
                whole.append(file)
            elif file.copy is None:
                lost.append(file)
            elif file.is_only_appended_to():
                whole.append(replace(file, stamp=now))
            else:
                written = files_being_written() if written is None else written
                try:
                    whole.append(file.restore(now, written))
                    back.append(file.path)
                except WrittenByOthers:
                    others.append(file)
                except CannotRestore as reason:
                    self._why_lost[str(reason)] = None
                    lost.append(file)
        # Not before: after ^C at any moment, a later check must find all files here.
        self._watched, self._lost = [*whole, *others], [*self._lost, *lost]
        self._stop_watching(others)
        self._remark_new(
            back,
            f"during {what}, overwritten or removed: {{}}; restored from a copy, as after every trial. If "
            "a config key sets the path, list it in the autotune: section: redirect: [KEY]",
        )

    def _stop_watching(self, files: Sequence[WatchedFile]) -> None:
        if not files:
            return
        gone = set(map(id, files))
        self._watched = [file for file in self._watched if id(file) not in gone]
        for copy in (file.copy for file in files if file.copy is not None):
            aside = self._others / copy.relative_to(self._copies)
            with contextlib.suppress(OSError):
                aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                aside.hardlink_to(copy)
                self._discard(copy)
        where = f"; backup copies: {self._others}" if any(file.copy for file in files) else ""
        self._remark_new(
            [file.path for file in files],
            f"another process writes to {{}}: no longer protected by this search{where}",
        )

    def _remark_new(self, paths: Sequence[Path], sentence: str) -> None:
        new = [path for path in paths if path not in self._reported]
        self._reported.update(new)
        if new:
            self._remark(sentence.replace("{}", names_of(new, self._cwd), 1))

    def _discard_all(self) -> None:
        for file in self._watched:
            if file.copy:
                self._discard(file.copy)

    def _discard(self, copy: Path) -> None:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            for folder in copy.parents:
                if folder == self._copies.parent:
                    break
                folder.rmdir()

    def _present(self) -> list[Path]:
        files = Snapshot(self._folders, self._trainer.excluded, self._clock).files
        return [path for path in files if is_called_a_checkpoint(path)]

    def _found(self) -> list[tuple[Path, os.stat_result]]:
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
    """Return whether a file's name is that of a checkpoint or trained model."""
    if _CHECKPOINT.fullmatch(path.name):
        return True
    return bool(_OR_DATA.fullmatch(path.name) and _WORD.search(f"{path.parent.name}/{path.name}"))


# Record of files left by earlier searches' trials, with their stamps, because a time alone would match a file that the
# user puts there meanwhile. Files that are missing in it, or have another stamp, are the user's.


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


class CannotRestore(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Failure to restore a file; the text is the reason for people."""


class WrittenByOthers(CannotRestore):
    """Refusal to restore a file that another process writes to."""


@dataclass(frozen=True, kw_only=True)
class WatchedFile:
    """State of a file before the trials.

    Attributes:
        stamp: Metadata that change with the file.
        owner: User and group ids, with a copy.
    """

    path: Path
    stamp: Stamp | None
    copy: Path | None = None
    owner: tuple[int, int] | None = None

    @property
    def now(self) -> Stamp | None:
        return stamp_of(self.path)

    def is_only_appended_to(self) -> bool:
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

    def restore(self, left: Stamp | None, written: Collection[tuple[int, int]] = ()) -> WatchedFile:
        """Restore the file from its copy atomically, with times, mode, and owner if permitted.

        Args:
            left: Stamp when the trial ended.
            written: From `files_being_written`.

        Raises:
            WrittenByOthers: It has changed since, or is open for writing.
            CannotRestore: The disk is full, or its folder is not writable.
        """
        assert self.copy is not None, "a copy exists"
        folder = self.path.parent
        temporary = folder / f".{secrets.token_hex(6)}.autotune"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.path.realpath(folder) != str(folder):
                raise CannotRestore("its folder is a link now")
            try:
                _copy(self.copy, temporary, owner=self.owner)
                if self.now != left or (left and left[:2] in written):
                    raise WrittenByOthers("another process writes to it")
                if left is None:
                    os.link(temporary, self.path)  # unlike a rename, never overwrites a new file
                else:
                    temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)
        except FileExistsError:
            raise WrittenByOthers("another process writes to it") from None
        except OSError as error:
            raise CannotRestore(error.strerror or str(error)) from error
        return replace(self, stamp=self.now)


def back_up(path: Path, copy: Path) -> WatchedFile | None:
    """Copy a file; None if that fails, or the file changes meanwhile."""
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
    return WatchedFile(path=path, stamp=stamp, copy=copy, owner=(about.st_uid, about.st_gid))


MOST_OF_FREE = 0.1
"""Largest fraction of the free space for copies."""


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """Copy of the user's newest checkpoint.

    Attributes:
        name: Its path, relative to the folder in the config.
        files: Copies, with paths below a trial's outputs folder.
    """

    name: str
    files: tuple[tuple[Path, Path], ...]

    def put_into(self, outputs: Path) -> None:
        """Copy the files into a trial's outputs folder; raise AutotuneError if that fails, and leave none."""
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
    """Copy the newest checkpoint in the config's output folders, for some number of trainings.

    Returns:
        The copy, or a clause on why there is none; empty without a checkpoint.
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
        # The files of a checkpoint are written within a minute; a small one may point to the latest.
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
    paths = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    for path in itertools.islice(paths, 20_000):
        with contextlib.suppress(OSError):  # gone meanwhile
            about = path.lstat()
            if stat.S_ISREG(about.st_mode):
                yield path, about


def _copy(path: Path, to: Path, *, owner: tuple[int, int] | None = None) -> None:
    """Copy a regular file with its times, as a reflink if possible; if that fails, raise OSError and leave none."""
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
"""Trials after which side effects are checked."""


@dataclass(frozen=True, kw_only=True)
class SideEffect:
    """Files that a trial left outside its folder, perhaps a cache for later trials."""

    sentence: str
    fills_a_cache: bool


class SideEffects:
    """Detector of side effects of a search's trials; created before the first one.

    Args:
        is_restored: Whether `CheckpointBackups` handles a file.
    """

    def __init__(self, trainer: Trainer, clock: Clock, is_restored: Callable[[Path], bool]) -> None:
        self._is_restored = is_restored
        self._cwd = trainer.settings.folder
        self._reported: set[Path] = set()  # not reported again
        self._data = _data_folders(trainer)
        self._snapshot = Snapshot(watched_folders(trainer), trainer.excluded, clock)

    def since_then(self, what: str, *, looks_for_cache: bool = True) -> SideEffect | None:
        """Return the side effect of ``trial 3`` or the like, since the last scan.

        Args:
            looks_for_cache: Whether new files among the data count as a cache.
        """
        traces = self._snapshot.traces().excluding(self._reported, self._is_restored)
        if not traces.any:
            return None
        self._reported.update(traces.new, traces.changed, traces.gone)
        cache = [path for path in traces.new if looks_for_cache and is_below(path, set(self._data))]
        return SideEffect(sentence=self._sentence(traces, cache, what), fills_a_cache=bool(cache))

    def _sentence(self, traces: SnapshotChanges, cache: Sequence[Path], what: str) -> str:
        parts = [
            f"{how} {names_of(paths, self._cwd)}"
            for how, paths in (("new:", traces.new), ("changed:", traces.changed), ("gone:", traces.gone))
            if paths
        ]
        text = f"during {what}, outside its folder: {', '.join(parts)}. autotune removes nothing there"
        if cache:
            names = names_of(cache, self._cwd)
            text += f"; {names} is treated as a cache, so that trial is not compared with later ones"
        if len(cache) < len(traces.new) + len(traces.changed):
            text += "; if a config key sets the path, list it in the autotune: section: redirect: [KEY]"
        if traces.unseen:
            text += f" (only {MOST_ENTRIES:,} files were checked, not all below {names_of(traces.unseen, self._cwd)})"
        return text


def watched_folders(trainer: Trainer) -> tuple[Path, ...]:
    """Return the folders where a trial may leave files, the most specific first."""
    return *_data_folders(trainer), _config_folder(trainer), trainer.settings.folder


def names_of(paths: Sequence[Path], cwd: Path) -> str:
    """Format some paths for people, relative to a folder, and the number of others."""
    shown = [str(path.relative_to(cwd) if path.is_relative_to(cwd) else path) for path in paths[:5]]
    more = len(paths) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown)


def folders_named(values: Values, *bases: Path) -> Iterator[Path]:
    """Yield folders of paths in a config's values, the most specific first, without those above the bases or home."""
    found: set[Path] = set()
    for text in {value for value in values.values() if isinstance(value, str) and "://" not in value}:
        for folder in bases:
            named = path_of(text, folder)
            # A word without a slash is a path only if it exists.
            path = real_path(named) if named and ("/" in text or exists(named)) else None
            if path is not None:
                found.add(path if os.path.isdir(path) else path.parent)
    general = [*bases, Path(os.path.expanduser("~"))]  # unlike `Path.home`, never raises
    kept = (path for path in found if os.path.isdir(path) and not any(other.is_relative_to(path) for other in general))
    yield from sorted(kept, key=lambda path: (-len(path.parts), path))


def _config_folder(trainer: Trainer) -> Path:
    return Path(os.path.realpath(trainer.config_path.parent))


def _data_folders(trainer: Trainer) -> tuple[Path, ...]:
    redirected = set(trainer.settings.outputs.redirected)
    named = {path: value for path, value in trainer.settings.scalars.items() if path not in redirected}
    return tuple(folders_named(named, trainer.settings.folder, _config_folder(trainer)))


MOST_ENTRIES = 20_000
"""Most files and folders in one scan."""

LOOK_LIMIT_S = 1.0
"""Time limit of one scan."""


# Trainings write nothing here, and some are huge.
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "site-packages", "node_modules", ".autotune"})
Stamp = tuple[int, ...]


def is_below(path: Path, places: Set[Path]) -> bool:
    """Return whether a path is one of these places, or below one."""
    return not places.isdisjoint((path, *path.parents))


@dataclass(frozen=True, kw_only=True)
class SnapshotChanges:
    """Changes between two scans.

    Attributes:
        new: Without the contents of new folders.
        unseen: Folders that were not scanned completely.
    """

    new: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()
    unseen: tuple[Path, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.new or self.changed or self.gone)

    def excluding(self, known: Set[Path], is_restored: Callable[[Path], bool] = lambda _path: False) -> SnapshotChanges:
        """Return the changes without those below known paths and of restored files."""
        new, changed, gone = (
            tuple(path for path in paths if not is_below(path, known)) for paths in (self.new, self.changed, self.gone)
        )
        changed, gone = (tuple(path for path in paths if not is_restored(path)) for paths in (changed, gone))
        return replace(self, new=new, changed=changed, gone=gone)


@dataclass
class _Folder:
    """Entries of one folder: a stamp for a file, None for a subfolder."""

    entries: dict[str, Stamp | None] = field(default_factory=dict)
    whole: bool = True  # all entries were scanned


class Snapshot:
    """Snapshot of folders, the most important first, and everything below."""

    def __init__(self, folders: Iterable[Path], excluded: Iterable[Path], clock: Clock) -> None:
        # Also the files that this process may be writing, such as a log of its output.
        own = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        self._excluded = frozenset(map(os.path.realpath, (*map(str, excluded), *own)))
        self._roots = tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))
        self._clock = clock
        self._seen = self._scan()

    @property
    def files(self) -> Iterator[Path]:
        for name, folder in self._seen.items():
            yield from (Path(name, entry) for entry, stamp in folder.entries.items() if stamp is not None)

    def traces(self) -> SnapshotChanges:
        before, self._seen = self._seen, self._scan()
        new: list[Path] = []
        changed: list[Path] = []
        gone: list[Path] = []
        for name, now in self._seen.items():
            was = before.get(name)
            if was is None:
                continue  # new, and reported with its parent; or not reached before
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

    def _scan(self) -> dict[str, _Folder]:
        """Scan the folders breadth first until time is up."""
        over_s = self._clock.now_s() + LOOK_LIMIT_S
        left = MOST_ENTRIES
        seen: dict[str, _Folder] = {}
        waiting = deque(self._roots)
        while waiting:
            name = waiting.popleft()
            if name in seen or name in self._excluded:
                continue
            folder = seen[name] = _Folder()
            try:
                with os.scandir(name) as entries:
                    for entry in entries:
                        if left == 0 or self._clock.now_s() > over_s:
                            folder.whole = False
                            break
                        left -= 1
                        if entry.path in self._excluded:
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name in _SKIPPED or _is_skipped(entry.path):
                                continue
                            folder.entries[entry.name] = None
                            waiting.append(entry.path)
                        else:
                            folder.entries[entry.name] = stamp_of(entry) or ()
            except OSError:  # not readable, or gone meanwhile
                del seen[name]
        return seen


def _is_skipped(path: str) -> bool:
    state = ("studies", "trials", "searches", "cache", "backups", "kept")
    return os.path.exists(os.path.join(path, "pyvenv.cfg")) or all(os.path.isdir(os.path.join(path, s)) for s in state)


def stamp_of(path: Path | os.DirEntry[str]) -> Stamp | None:
    """Return metadata that change when a file is written or replaced; None if it does not exist."""
    try:
        about = path.stat(follow_symlinks=False)
    except OSError:
        return None
    # ctime too: unlike mtime, copying tools cannot set it back.
    return about.st_dev, about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _outermost(folders: Iterable[str], roots: Sequence[str]) -> tuple[Path, ...]:
    holding: set[str] = set()
    for folder in folders:
        while folder not in holding:
            holding.add(folder)
            folder = os.path.dirname(folder)
    return tuple(Path(root) for root in roots if root in holding)
