"""Side effects of trials: files that they leave outside their own folders; reported once, never deleted.

A key that says where a trainer writes is redirected (`autotune.settings.outputs`); files that a trainer writes without
asking the config are not. Such files may make trials affect each other: a checkpoint that the next trial resumes from,
a cache that the first trial fills and the later ones read.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.protect.snapshot import MOST_ENTRIES, Below, Snapshot, SnapshotChanges
from autotune.records import Values
from autotune.settings.paths import exists, path_of, real_path
from autotune.trial.plan import Trainer

TRIALS_LOOKED_AROUND = 2
"""Number of trials of a search that are checked for side effects: the baseline's first, and the one after it."""

_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class SideEffect:
    """Side effect of one trial: files that it left outside its folder.

    Attributes:
        sentence: Description for the user.
        fills_a_cache: Whether new files are among the trial's data: then this trial did work that later ones skip.
    """

    sentence: str
    fills_a_cache: bool


class SideEffects:
    """Detector of side effects of the first trials of a search; made before the first of them.

    Args:
        trainer: Tells where a trial can be expected to write.
        clock: Limits the time of a look.
    """

    def __init__(self, trainer: Trainer, clock: Clock) -> None:
        self._cwd = trainer.settings.folder
        self._told: set[Path] = set()  # paths that were reported are not reported again
        self._data = _data_folders(trainer)
        self._snapshot = Snapshot(folders_looked_at(trainer), trainer.apart, clock)

    def of_the_trial(self, number: int | None) -> SideEffect | None:
        """Return the side effect since the last look; None if there is none.

        Args:
            number: Number of the trial that has just ended; None for the preflight of `autotune init`.
        """
        traces = self._snapshot.traces().beyond(self._told)
        if not traces.any:
            return None
        self._told.update(traces.new, traces.changed, traces.gone)
        data = Below(self._data)
        cache = [path for path in traces.new if path in data]
        return SideEffect(sentence=self._sentence(traces, cache, number), fills_a_cache=bool(cache))

    def _sentence(self, traces: SnapshotChanges, cache: Sequence[Path], number: int | None) -> str:
        parts = [
            f"{what} {names_of(paths, self._cwd)}"
            for what, paths in (("new:", traces.new), ("changed:", traces.changed), ("gone:", traces.gone))
            if paths
        ]
        trial = "the preflight trial" if number is None else f"trial {number}"
        said = f"while {trial} went on, outside its folder: {', '.join(parts)}. autotune takes nothing away there"
        if cache:
            names = names_of(cache, self._cwd)
            said += f"; {names} is taken for a cache, so that trial is not compared with later ones"
        if len(cache) < len(traces.new) + len(traces.changed):
            said += "; where a key says where it goes, name that key under redirect:"
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
    shown = [str(path.relative_to(cwd) if path.is_relative_to(cwd) else path) for path in paths[:_NAMED]]
    more = len(paths) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown)


def folders_named(values: Values, *beside: Path) -> Iterator[Path]:
    """Yield the folders that a config's values name, by themselves or by a file in them, the most specific first.

    Left out are those that the working directory or the user's home lies in: they hold everything.

    Args:
        values: The config's scalars.
        beside: Folders that relative paths may be relative to.
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
    kept = (path for path in found if os.path.isdir(path) and not _holds_any(path, general))
    yield from sorted(kept, key=lambda path: (-len(path.parts), path))


def _beside(trainer: Trainer) -> Path:
    return Path(os.path.realpath(trainer.config_path.parent))


def _data_folders(trainer: Trainer) -> tuple[Path, ...]:
    redirected = set(trainer.settings.outputs.redirected)
    named = {path: value for path, value in trainer.settings.scalars.items() if path not in redirected}
    return tuple(folders_named(named, trainer.settings.folder, _beside(trainer)))


def _holds_any(folder: Path, others: Iterable[Path]) -> bool:
    return any(other.is_relative_to(folder) for other in others)
