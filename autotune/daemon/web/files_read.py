"""Things read from the JSON files of one folder, and read again only when one of the files has changed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from autotune.errors import AutotuneError

Thing = TypeVar("Thing")

_Stamp = tuple[tuple[str, int, int], ...]


class FilesRead(Generic[Thing]):
    """Things of one folder.

    Args:
        folder: The folder.
        read: Reads all of them; may raise `AutotuneError`.
    """

    def __init__(self, folder: Path, read: Callable[[], Sequence[Thing]]) -> None:
        self._folder = folder
        self._read = read
        self._stamp: _Stamp | None = None
        self._things: Sequence[Thing] = ()
        self._trouble: str | None = None

    def now(self) -> tuple[Sequence[Thing], str | None]:
        """Return the things, and why they cannot be read, in words: the last ones that could be are given then."""
        stamp = self._look()
        if stamp is None or stamp != self._stamp:
            self._stamp = stamp
            try:
                self._things, self._trouble = self._read(), None
            except AutotuneError as error:
                self._trouble = str(error)
        return self._things, self._trouble

    def _look(self) -> _Stamp | None:
        """Return names, sizes and times of the files; None if they cannot be looked at."""
        try:
            with os.scandir(self._folder) as found:
                files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found if _is_ours(entry.name)]
        except OSError:
            return None
        return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in files))


def _is_ours(name: str) -> bool:
    return name.endswith(".json")
