"""Snapshot of folders: finds files that were added, changed or removed during a trial, outside its own folder.

Two looks at the same folders are compared, so time stamps are compared only within one file system. A look is
bounded: where a tree is too large to be seen whole, the result says so. A change may have another cause than the
trial, so it is reported only as having happened during the trial.
"""

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.clock import Clock

MOST_ENTRIES = 20_000
"""Most files and folders in one look."""

MOST_S = 1.0
"""Longest time of one look."""

# Nothing that a training writes lies in these, and some of them are huge.
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", "site-packages", "node_modules", ".autotune"})
_ENVIRONMENT = "pyvenv.cfg"  # a folder with this is a virtual environment
_STATE = ("studies", "trials", "searches", "cache", "backups", "kept")  # a folder with all these is a state folder

_Stamp = tuple[int, ...]


class Below:
    """Set of paths and everything below them; a lookup takes the same time for any number of them.

    Args:
        places: The paths.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self._holds = dict.fromkeys(places, True)  # and of each folder that was asked for, whether it lies below one

    def __contains__(self, path: Path) -> bool:
        asked = []
        while (held := self._holds.get(path)) is None:
            asked.append(path)
            if path.parent == path:
                held = False
                break
            path = path.parent
        self._holds.update(dict.fromkeys(asked[1:], held))  # the first is no folder that others lie in, as a rule
        return held


@dataclass(frozen=True, kw_only=True)
class SnapshotChanges:
    """Changes between two looks.

    Attributes:
        new: Files and folders that were not there; of a new folder only itself.
        changed: Files that were written to.
        gone: Files and folders that were there.
        unseen: Folders that could not be looked at whole.
    """

    new: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()
    unseen: tuple[Path, ...] = ()

    @property
    def any(self) -> bool:
        """True if there is any change."""
        return bool(self.new or self.changed or self.gone)

    def beyond(self, known: Collection[Path]) -> "SnapshotChanges":
        """Return the changes without these paths, and without everything below them."""
        left_out = Below(known)

        def others(paths: Iterable[Path]) -> tuple[Path, ...]:
            return tuple(path for path in paths if path not in left_out)

        return replace(self, new=others(self.new), changed=others(self.changed), gone=others(self.gone))


@dataclass
class _Folder:
    """Entries of one folder: a stamp for a file, None for a subfolder; `whole` is False if there are more."""

    entries: dict[str, _Stamp | None] = field(default_factory=dict)
    whole: bool = True


class Snapshot:
    """Snapshot of some folders, taken when this object is made and again at each later look.

    Args:
        folders: Folders to look at, the most important first; each with everything below it.
        apart: Folders that do not count.
        clock: Limits the time of a look.
    """

    def __init__(self, folders: Iterable[Path], apart: Iterable[Path], clock: Clock) -> None:
        self._apart = frozenset((*map(os.path.realpath, apart), *_open_files()))
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
                            if entry.name in _LEFT_OUT or _is_environment(entry.path) or _is_state(entry.path):
                                continue
                            folder.entries[entry.name] = None
                            waiting.append(entry.path)
                        else:
                            folder.entries[entry.name] = _stamp(entry)
            except OSError:  # not readable, or gone meanwhile: nothing is known of it
                del seen[name]
        return seen


def _open_files() -> list[str]:
    """Return the files that this process itself may be writing, such as a log that its output goes to."""
    return [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, _ENVIRONMENT))


def _is_state(path: str) -> bool:
    """Return whether a folder is the state folder of another member, which works beside this one, or was one."""
    return all(os.path.isdir(os.path.join(path, name)) for name in _STATE)


def _stamp(entry: os.DirEntry[str]) -> _Stamp:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return ()
    # ctime too: it cannot be set back, as tools that copy a file with its times do with mtime.
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _outermost(folders: Iterable[str], roots: Sequence[str]) -> tuple[Path, ...]:
    """Return the roots that these folders belong to."""
    holding: set[str] = set()
    for folder in folders:
        while folder not in holding:
            holding.add(folder)
            folder = os.path.dirname(folder)
    return tuple(Path(root) for root in roots if root in holding)
