"""Side effects of trials: files that they leave outside their own folders; reported once, never deleted.

A key that says where a trainer writes is redirected (`autotune.config.outputs`); files that a trainer writes without
asking the config are not. Such files may make trials affect each other: a checkpoint that the next trial resumes from,
a cache that the first trial fills and the later ones read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.clock import Clock
from autotune.config.outputs import exists, path_of, real_path
from autotune.records import Values
from autotune.trial.plan import Trainer

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
            `checkpoint_backups`.
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
        seen = self._snapshot.traces().beyond(self._told)
        changed, gone = (tuple(one for one in some if not self._is_restored(one)) for some in (seen.changed, seen.gone))
        traces = replace(seen, changed=changed, gone=gone)
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

MOST_S = 1.0
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

    def beyond(self, known: Collection[Path]) -> SnapshotChanges:
        """Return the changes without these paths, and without everything below them."""
        left_out = set(known)

        def others(paths: Iterable[Path]) -> tuple[Path, ...]:
            return tuple(path for path in paths if not is_below(path, left_out))

        return replace(self, new=others(self.new), changed=others(self.changed), gone=others(self.gone))


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
        over_s = self._clock.now_s() + MOST_S
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
