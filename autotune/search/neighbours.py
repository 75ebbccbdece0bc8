"""Coordination of searches and workers on the GPUs of one machine: they run pairs alone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock
from autotune.files import make_private_folder, open_regular

FOLDER_VARIABLE = "AUTOTUNE_NEIGHBOURS"
"""Variable with the folder of the lock files, set by the parent of the processes."""

_POLL_S = 0.05  # between attempts to lock


class Neighbours:
    """Searches and workers that were started together on this machine.

    Attributes:
        waited: Whether they waited during the latest trial, if known.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.waited: bool | None = None

    @classmethod
    def of_environment(cls) -> "Neighbours":
        folder = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None)

    def __bool__(self) -> bool:
        return self._folder is not None

    @contextmanager
    def turn(self, clock: Clock, *, alone: bool, until_s: float) -> Iterator[None]:
        """Hold the lock for one trial: shared, or exclusive after running trials have ended.

        Args:
            until_s: Monotonic time at which waiting ends without the lock.
        """
        self.waited = None
        if self._folder is None:
            yield
            return
        with self._open("next") as queue, self._open("training") as training:
            _lock(queue, fcntl.LOCK_EX, clock, until_s)
            is_shared = not _lock(training, fcntl.LOCK_EX, clock, until_s=0.0)  # without waiting
            has_turn = _lock(training, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, clock, until_s)
            if not alone:
                fcntl.flock(queue, fcntl.LOCK_UN)
            yield
            if alone:
                self.waited = has_turn or None
            elif is_shared or not _lock(training, fcntl.LOCK_EX, clock, until_s=0.0):
                self.waited = False

    def _open(self, name: str) -> BinaryIO:
        assert self._folder is not None
        make_private_folder(self._folder)
        return open_regular(self._folder / f"{name}.lock", append=True, create=True)


def _lock(file: BinaryIO, kind: int, clock: Clock, until_s: float) -> bool:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now_s() >= until_s:
                return False
            clock.wait(_POLL_S)
        else:
            return True
