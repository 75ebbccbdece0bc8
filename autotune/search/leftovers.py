"""What runs leave outside their own folders: found by looking, told once, never deleted.

A key that says where a trainer writes is redirected (`autotune.settings.outputs`); what a trainer writes without
asking the config is not. Such files may make runs affect each other: a checkpoint that the next run resumes from, a
cache that the first run fills and the later ones read.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.records import Values
from autotune.search.setup import Setup
from autotune.trial.surroundings import MOST_ENTRIES, Surroundings, Traces

RUNS_LOOKED_AROUND = 2
"""Runs of a search whose surroundings are looked at: today's first, and the one after it."""

_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """What one run left outside its folder.

    Attributes:
        sentence: It, for the user.
        fills_a_cache: Whether it is new and lies among the run's data: then this run did what later ones need not.
    """

    sentence: str
    fills_a_cache: bool


class Leftovers:
    """Looks around while the first runs of a search go on; made before the first of them.

    Args:
        setup: Says where a run can be expected to write.
        clock: For the time that a look may take.
        cwd: Where runs start.
    """

    def __init__(self, setup: Setup, clock: Clock, *, cwd: Path) -> None:
        self._cwd = Path(os.path.realpath(cwd))
        self._told: tuple[Path, ...] = ()  # what is named once is not named again
        beside = Path(os.path.realpath(setup.config_path.parent))
        redirected = set(setup.settings.outputs.redirected)
        named = {path: value for path, value in setup.settings.scalars.items() if path not in redirected}
        self._data = tuple(folders_named(named, self._cwd, beside))
        self._surroundings = Surroundings((*self._data, beside, self._cwd), [setup.state.path], clock)

    def of_the_run(self, number: int) -> Leftover | None:
        """What is there since the last look; None if nothing is.

        Args:
            number: Of the run that has just ended.
        """
        traces = self._surroundings.traces().beyond(self._told)
        if not traces.any:
            return None
        self._told += (*traces.new, *traces.changed, *traces.gone)
        cache = [path for path in traces.new if any(path.is_relative_to(folder) for folder in self._data)]
        return Leftover(sentence=self._sentence(traces, cache, number), fills_a_cache=bool(cache))

    def _sentence(self, traces: Traces, cache: Sequence[Path], number: int) -> str:
        parts = [
            f"{what} {self._names(paths)}"
            for what, paths in (("new:", traces.new), ("changed:", traces.changed), ("gone:", traces.gone))
            if paths
        ]
        said = f"while run {number} went on, outside its folder: {', '.join(parts)}. autotune takes nothing away there"
        if cache:
            said += f"; {self._names(cache)} is taken for a cache, so that run is not compared with later ones"
        if len(cache) < len(traces.new) + len(traces.changed):
            said += "; where a key says where it goes, name that key under redirect:"
        if traces.unseen:
            said += f" (only {MOST_ENTRIES:,} files were looked at, not all below {self._names(traces.unseen)})"
        return said

    def _names(self, paths: Sequence[Path]) -> str:
        shown = [
            str(path.relative_to(self._cwd) if path.is_relative_to(self._cwd) else path) for path in paths[:_NAMED]
        ]
        more = len(paths) - len(shown)
        return " ".join([*shown, f"and {more} more"] if more else shown)


def folders_named(values: Values, *beside: Path) -> Iterator[Path]:
    """The folders that a config's values name, itself or by a file in them, the most special first.

    Left out are those that the working directory or the user's home lies in: they hold everything.

    Args:
        values: The config's scalars.
        beside: What relative paths may be relative to.
    """
    found: set[Path] = set()
    for value in values.values():
        if isinstance(value, str) and value and "\0" not in value and "://" not in value:
            for folder in beside:
                path = Path(os.path.realpath(folder / os.path.expanduser(value)))
                # A word without a slash is a path only if there is something of that name.
                if "/" in value or path.exists():
                    found.add(path if path.is_dir() else path.parent)
    general = [*beside, Path.home()]
    kept = (path for path in found if path.is_dir() and not _holds_any(path, general))
    yield from sorted(kept, key=lambda path: (-len(path.parts), path))


def _holds_any(folder: Path, others: Iterable[Path]) -> bool:
    return any(other.is_relative_to(folder) for other in others)
