"""One file of the user and its copy: made, compared, and restored where a trial has overwritten the file."""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.files import open_regular

_CHUNK_BYTES = 1 << 20

Stamp = tuple[int, ...]


class CannotPutBack(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Failure to restore a file, which stays as a trial has left it; the text is the reason for people."""


class SomebodyElses(CannotPutBack):
    """Refusal to restore a file that others write to as well: its content may be theirs."""


class CopyChanged(CannotPutBack):
    """Refusal to restore from a copy that was changed after it was made."""


@dataclass(frozen=True, kw_only=True)
class KeptFile:
    """State of a file before the trials, and its copy.

    Attributes:
        path: The file, no part of it a link.
        stamp: Metadata that show whether it was changed since; None if the file does not exist.
        copy: Its copy; None if there is none.
        digest: SHA-256 of its content; None without a copy.
        owner: Its user and group; None without a copy.
    """

    path: Path
    stamp: Stamp | None
    copy: Path | None = None
    digest: bytes | None = None
    owner: tuple[int, int] | None = None

    @property
    def now(self) -> Stamp | None:
        """Stamp of the file now; None if it is gone."""
        return stamp_of(self.path)

    def still_begins_so(self) -> bool:
        """Return whether all its old content is still there, at most with something appended; False without a copy."""
        if self.copy is None:
            return False
        try:
            with open_regular(self.path) as file, open_regular(self.copy) as old:
                while chunk := old.read(_CHUNK_BYTES):
                    if file.read(len(chunk)) != chunk:
                        return False
        except OSError:
            return False
        return True

    def put_back(self, left: Stamp | None, written: Collection[tuple[int, int]] = ()) -> "KeptFile":
        """Restore the file from its copy atomically, with its times and mode.

        Args:
            left: The file's stamp when the trial had ended; it must not have been changed since.
            written: Device and inode of each file that is open for writing now that no trial is running.

        Returns:
            The file as it is now.

        Raises:
            SomebodyElses: It was touched since, or is open for writing.
            CopyChanged: Somebody has written to the copy.
            CannotPutBack: There is no room, or the place may not be written to.
        """
        assert self.copy is not None, "there is something to put back"
        folder = self.path.parent
        beside = folder / f".{secrets.token_hex(6)}.autotune"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.path.realpath(folder) != str(folder):
                raise CannotPutBack("its folder is a link now")
            try:
                with open_regular(self.copy) as old, beside.open("xb") as new:
                    if _copied(old.read, new.write) != self.digest:
                        raise CopyChanged("its copy was changed")
                    new.flush()
                    self._like_before(new.fileno(), beside)
                    os.fsync(new.fileno())
                if self.now != left or (left and left[:2] in written):
                    raise SomebodyElses("somebody else writes to it")
                self._take_place(beside, left)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    beside.unlink()
        except OSError as error:
            raise CannotPutBack(error.strerror or str(error)) from error
        return replace(self, stamp=self.now)

    def _like_before(self, number: int, path: Path) -> None:
        """Set the mode and times of a new file to those of the old one, and its owner where that is permitted."""
        assert self.copy is not None, "there is something that says how it was"
        now = os.fstat(number)
        if self.owner and self.owner != (now.st_uid, now.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(number, *self.owner)
        shutil.copystat(self.copy, path, follow_symlinks=False)

    def _take_place(self, beside: Path, left: Stamp | None) -> None:
        if left is not None:
            beside.replace(self.path)
            return
        try:
            os.link(beside, self.path)  # unlike a rename, never over something that has just come
        except FileExistsError:
            raise SomebodyElses("somebody else writes to it") from None


def stamp_of(path: Path) -> Stamp | None:
    """Return metadata of a file that change when it is written to or replaced; None if it does not exist."""
    try:
        about = path.lstat()
    except OSError:
        return None
    # ctime too: it cannot be set back, as tools that copy a file with its times do with mtime.
    return about.st_dev, about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def kept(path: Path, copy: Path) -> KeptFile | None:
    """Copy a file; return None if it cannot be read, is no regular file, changes meanwhile, or the disk is full."""
    stamp = stamp_of(path)
    try:
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_regular(path) as file, copy.open("xb") as new:
            about = os.fstat(file.fileno())
            digest = _copied(file.read, new.write)
        shutil.copystat(path, copy, follow_symlinks=False)
        if stamp is not None and stamp_of(path) == stamp:
            return KeptFile(path=path, stamp=stamp, copy=copy, digest=digest, owner=(about.st_uid, about.st_gid))
    except OSError:
        pass
    with contextlib.suppress(OSError):
        copy.unlink(missing_ok=True)
    return None


def _copied(read: Callable[[int], bytes], write: Callable[[bytes], int]) -> bytes:
    """Copy everything from a reader to a writer, and return its SHA-256."""
    digest = hashlib.sha256()
    while chunk := read(_CHUNK_BYTES):
        digest.update(chunk)
        write(chunk)
    return digest.digest()
