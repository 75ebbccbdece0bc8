"""Probe whether the locks of a shared folder hold between hosts: on some network disks they do not.

Each member of a study keeps a file of its own locked. Another host that gets this lock, while its holder goes on giving
signs of life, sees that locks mean nothing there: two hosts would write into one journal at once.
"""

import contextlib
import errno
import fcntl
from pathlib import Path
from typing import BinaryIO

from autotune.files import open_regular


class LockProbe:
    """Lock of one member beside a journal.

    Args:
        journal: The journal.
        member: UUID of the member, hexadecimal.
    """

    def __init__(self, journal: Path, member: str) -> None:
        self._journal = journal
        self._path = self._path_of(member)
        self._file: BinaryIO | None = None

    def hold(self) -> None:
        """Lock the member's file, until `close`.

        Raises:
            OSError: It cannot be made, or not be locked: this disk has no locks.
        """
        self._file = open_regular(self._path, append=True, create=True)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def holds(self, member: str) -> bool | None:
        """Return whether another member's lock is seen here; None where it has no file, or that cannot be told."""
        if not member.isalnum():  # it comes out of the storage, and becomes part of a path
            return None
        try:
            with open_regular(self._path_of(member), append=True) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
        return False

    def delete_left(self, member: str) -> None:
        """Delete the file of a member that is gone, and could not do so itself."""
        if self.holds(member) is False:
            with contextlib.suppress(OSError):
                self._path_of(member).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the lock, and delete the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _path_of(self, member: str) -> Path:
        return self._journal.with_name(f"{self._journal.stem}.{member}.alive")
