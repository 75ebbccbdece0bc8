"""Files that the GPU collectors of a search write: locked while it lives, removed when it is over.

A search that is killed leaves them behind; the next one in the same state folder removes them.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections import defaultdict
from pathlib import Path

_OURS = re.compile(r"(\d{8}T\d{6}Z-[A-Za-z0-9._-]+-\d+\.gpu\.jsonl)(\.\d+|\.log)?")
"""``<search>.gpu.jsonl``, which a search locks, and its further files beside it."""

_LOCKED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CollectorFiles:
    """Files of one search.

    Args:
        path: The first of them; the others are beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None

    @property
    def log(self) -> Path:
        """File for the output of collectors, which is empty unless they break."""
        return self._path.with_name(f"{self._path.name}.log")

    def stream(self, number: int) -> Path:
        """Return the file of the first collector, the second, and so on."""
        return self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number}")

    def hold(self) -> None:
        """Create the first file and lock it, so that no other search takes it for an abandoned one."""
        with contextlib.suppress(OSError):  # the disk is full: the collector will be silent, and that is said
            while self._held is None:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file).st_nlink:
                    self._held = file
                else:  # another search found it before it was held
                    os.close(file)

    def remove(self) -> None:
        """Remove all of them; may be called again."""
        for path in self._path.parent.iterdir():
            if path.name.startswith(self._path.name):
                with contextlib.suppress(OSError):  # gone already, or a folder, which is none of ours
                    path.unlink()
        if self._held is not None:
            os.close(self._held)
            self._held = None


def remove_abandoned(folder: Path) -> None:
    """Remove the files that earlier searches have left in a folder.

    Only regular files of exactly our names, whose search locks them no more; what cannot be removed stays.

    Args:
        folder: Folder of all searches.
    """
    found: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in folder.iterdir():
        if ours := _OURS.fullmatch(path.name):
            found[folder / ours[1]].append(path)
    for first, paths in found.items():
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            if first in paths:
                file = os.open(first, _LOCKED)
                held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the search lives
            for path in paths:
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()
