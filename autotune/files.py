"""Files in folders that others may write to: opened without following a link and without waiting for anybody.

A trainer writes into its own trial folder, and a folder on a shared machine may have been prepared by somebody else.
What is opened by a known name there may be a link to another file, a FIFO whose other end nobody opens, or a device.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


def open_regular(path: Path, *, append: bool = False, create: bool = False, write: bool = False) -> BinaryIO:
    """Opens a regular file; never through a link in the last component of its path, and never blocking.

    Args:
        path: The file.
        append: Opens for writing at its end, where the position is, and for reading.
        create: Makes the file where there is none, for its owner alone; it can then be read and written.
        write: Opens for reading and writing from its start; nothing is cut off.

    Raises:
        OSError: It cannot be opened, ``ELOOP`` for a link, ``EINVAL`` for what is no regular file.
    """
    flags = os.O_RDWR if append or create or write else os.O_RDONLY
    flags |= (os.O_APPEND if append else 0) | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags | _SAFELY, _FILE_MODE)
    except IsADirectoryError as error:
        raise _no_regular_file(path) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _no_regular_file(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _no_regular_file(path)
        mode: Literal["rb", "r+b", "a+b"] = "a+b" if append else "r+b" if create or write else "rb"
        return os.fdopen(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def open_new(path: Path) -> BinaryIO:
    """Makes a file for its owner alone, whatever the umask, and opens it for writing.

    Whatever else has that name is taken away, and not written to.

    Raises:
        OSError: It cannot be made, e.g. since a folder has that name.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    os.fchmod(descriptor, _FILE_MODE)  # a umask may have taken the owner's own bits
    return os.fdopen(descriptor, "wb")


def create_private(path: Path, content: bytes = b"") -> None:
    """Makes a file with this content; see `open_new`.

    Raises:
        OSError: It cannot be made, or not all of it be written.
    """
    with open_new(path) as file:
        file.write(content)


def rewrite(path: Path, content: bytes) -> None:
    """Writes another content into a file of ours, which stays the same file; anything else of that name is replaced.

    Raises:
        OSError: It cannot be made, or not all of it be written.
    """
    try:
        file = open_regular(path, write=True)
    except OSError:
        return create_private(path, content)
    with file:
        if os.fstat(file.fileno()).st_nlink > 1:  # it is another file as well
            return create_private(path, content)
        os.fchmod(file.fileno(), _FILE_MODE)
        file.truncate()
        file.write(content)
    return None


def read_beginning(path: Path, most_bytes: int) -> bytes:
    """Returns the first bytes of a regular file; none where it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def read_tail(path: Path, most_bytes: int) -> tuple[bytes, int]:
    """Returns the last bytes of a regular file, and its size; ``(b"", 0)`` where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most_bytes, 0))
            return file.read(most_bytes), size
    except OSError:
        return b"", 0


def make_private_folder(path: Path) -> None:
    """Makes a folder and those above it for their owner alone, whatever the umask; closes one that is there to others.

    Folders above it that are there already stay as they are.

    Raises:
        OSError: It cannot be made, its mode cannot be set, or a link or a file is in its place.
    """
    above = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(above), path):
        try:
            folder.mkdir(_FOLDER_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != _FOLDER_MODE:
                os.fchmod(descriptor, _FOLDER_MODE)
        finally:
            os.close(descriptor)


def _no_regular_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))
