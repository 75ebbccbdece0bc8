"""Watcher of all trainings of this user on this machine; their folders are the truth, whoever has made them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from autotune.clock import Clock
from autotune.daemon.trainings.training_events import TrainingEvent
from autotune.daemon.trainings.training_folder import is_training
from autotune.daemon.trainings.training_header import TrainingHeader
from autotune.daemon.trainings.watched_training import ReadSurroundings, WatchedTraining
from autotune.folders.deletion import delete_tree
from autotune.folders.ownership import why_not_ours
from autotune.process.owner import this_process

KEPT = 50
"""Ended trainings that are kept."""

_LOOK_EVERY_S = 2.0  # for new trainings
_MOST = 256  # trainings that are looked at
_HEADLESS_S = 86400.0  # age at which a folder without a header is no training that is just being made


class Trainings:
    """Watched trainings of this user on this machine.

    Args:
        folder: The folder of all of them; it need not exist yet.
        clock: Source of time.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._this = this_process()
        self._alive: dict[str, WatchedTraining] = {}
        self._ended: set[str] = set()
        self._look_due_s = clock.now_s()

    @property
    def alive(self) -> tuple[WatchedTraining, ...]:
        """Trainings that go on, as far as the last poll saw."""
        return tuple(self._alive.values())

    def poll(self, surroundings: ReadSurroundings) -> list[TrainingEvent]:
        """Read what the trainings have reported since the last poll; made for every second or so.

        Args:
            surroundings: Reads what goes on beside a training; called for each at most every 5 s.

        Returns:
            What is to be told; each event once, whatever happens to the daemon.
        """
        now_s = self._clock.now_s()
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_EVERY_S
            self._find()
        events: list[TrainingEvent] = []
        for name, training in list(self._alive.items()):
            events += training.poll(surroundings)
            if training.is_over:
                del self._alive[name]
                self._ended.add(name)
                self._prune()
        return events

    def uses(self, config: Path) -> bool:
        """Return whether a watched training that goes on uses a config; looks for those that began just now."""
        real = os.path.realpath(config)
        self._find()
        return any(
            training.header.config is not None
            and os.path.realpath(training.header.config) == real
            and not training.is_gone()
            for training in self._alive.values()
        )

    def _find(self) -> None:
        """Find new trainings; what ended before anybody watched is only counted."""
        for name in self._names():
            if name in self._alive or name in self._ended or len(self._alive) >= _MOST:
                continue
            header = TrainingHeader.read(self._folder / name)
            if header is None:
                continue
            training = WatchedTraining(self._folder / name, header, self._this, self._clock)
            if training.ended_unseen():
                self._ended.add(name)
            else:
                self._alive[name] = training
        self._ended &= set(self._names())
        self._prune()

    def _names(self) -> list[str]:
        """Return the names of the trainings' folders, oldest first; none where somebody else owns their place."""
        if why_not_ours(self._folder, frozenset({os.geteuid()})) is not None:
            return []
        try:
            with os.scandir(self._folder) as entries:
                return sorted(
                    entry.name for entry in entries if is_training(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except OSError:  # it is not there yet
            return []

    def _prune(self) -> None:
        """Delete the oldest ended trainings, and folders that never became one."""
        for name in sorted(self._ended)[:-KEPT]:
            if delete_tree(self._folder / name):
                self._ended.discard(name)
        for path in self._headless():
            delete_tree(path)

    def _headless(self) -> Iterator[Path]:
        now_s = self._clock.utc().timestamp()
        for name in self._names():
            if name in self._alive or name in self._ended:
                continue
            path = self._folder / name
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) and now_s - status.st_mtime > _HEADLESS_S:
                yield path
