"""Neighbours: searches and workers on the other GPUs of this machine, and the turns that they take.

They share its memory, its disk and what feeds them. So they explore at the same time, and run pairs alone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.clock import Clock
from autotune.files import make_private_folder, open_regular

FOLDER_VARIABLE = "AUTOTUNE_NEIGHBOURS"
"""Variable with the folder of the locks by which those on one machine take turns; who starts them sets it."""

_LOOK_S = 0.05  # between looks at a lock


class Neighbours:
    """The others on this machine, as far as they were started together.

    Args:
        folder: Folder of the locks; None where there are no others.

    Attributes:
        waited: Whether they waited during the latest trial; None where that is not known.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.waited: bool | None = None

    @classmethod
    def of_environment(cls) -> "Neighbours":
        """Return those that this process was started with."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None)

    def __bool__(self) -> bool:
        return self._folder is not None

    @contextmanager
    def turn(self, clock: Clock, *, alone: bool, until_s: float) -> Iterator[None]:
        """Have a turn for one trial: beside those of others, or alone, after theirs have ended and while they wait.

        Who wants to be alone is not passed by: those that come later wait behind it.

        Args:
            until_s: Monotonic time after which nobody is waited for.
        """
        self.waited = None
        if self._folder is None:
            yield
            return
        with self._open("next") as queue, self._open("training") as training:
            _lock(queue, fcntl.LOCK_EX, clock, until_s)
            is_beside = not _is_free(training)
            has_turn = _lock(training, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, clock, until_s)
            if not alone:
                fcntl.flock(queue, fcntl.LOCK_UN)
            yield
            if alone:
                self.waited = has_turn or None
            elif is_beside or not _is_free(training):
                self.waited = False

    def _open(self, name: str) -> BinaryIO:
        assert self._folder is not None, "there are others"
        make_private_folder(self._folder)
        return open_regular(self._folder / f"{name}.lock", append=True, create=True)


def _lock(file: BinaryIO, kind: int, clock: Clock, until_s: float) -> bool:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now_s() >= until_s:
                return False
            clock.wait(_LOOK_S)
        else:
            return True


def _is_free(file: BinaryIO) -> bool:
    """Lock a file for this process alone; return whether nobody else had it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
