"""Safe opening of files in folders where another user may have put a link, a FIFO or a device under a known name."""

import contextlib
import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Literal

from autotune.errors import ConfigError

FOLDER = ".autotune"
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


def open_regular(path: Path, *, append: bool = False, create: bool = False) -> BinaryIO:
    """Open a regular file, without blocking and without following a link in the last component of its path.

    Args:
        append: Open for appending and reading.
        create: Open for reading and writing; create a missing file with mode 0600.
    """
    flags = os.O_RDWR if append or create else os.O_RDONLY
    flags |= (os.O_APPEND if append else 0) | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags | _SAFELY, _FILE_MODE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    mode: Literal["rb", "r+b", "a+b"] = "a+b" if append else "r+b" if create else "rb"
    # The file object now owns the descriptor: closing it here on ^C would close it twice, and that error would
    # replace the interrupt.
    return os.fdopen(descriptor, mode)


def open_new(path: Path) -> BinaryIO:
    """Create a file with mode 0600, regardless of the umask, in place of an existing file or link."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    os.fchmod(descriptor, _FILE_MODE)  # the umask may have cleared the owner's bits
    return os.fdopen(descriptor, "wb")


def create_private(path: Path, content: bytes = b"") -> None:
    """Create a file with this content by `open_new`."""
    with open_new(path) as file:
        file.write(content)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically, also in a power cut."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with open_new(fresh) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:  # a partial file would only add to a full disk
        error.filename = os.fspath(path)
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new files in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_beginning(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a regular file, if readable."""
    try:
        with open_regular(path) as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def json_object(text: bytes) -> dict[str, Any]:
    """Return the object in a JSON text, else an empty one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def file_sha256(path: Path, most_bytes: int) -> str | None:
    """Return the hash of a regular file's first bytes, links followed, if readable."""
    try:
        with open_regular(path.resolve()) as file:
            return hashlib.sha256(file.read(most_bytes)).hexdigest()
    except (OSError, RuntimeError, ValueError):  # the latter two: a loop of links, a zero byte
        return None


def read_tail(path: Path, most_bytes: int) -> tuple[bytes, int]:
    """Return the last bytes of a regular file and its size; ``(b"", 0)`` if it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - most_bytes, 0))
            return file.read(most_bytes), size
    except OSError:
        return b"", 0


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, or set the folder, to mode 0700, regardless of the umask.

    Raises:
        OSError: E.g. a link or a file is in its place.
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


def project_folder(config: Path) -> Path:
    """Return the project folder of a config, links resolved; see `StateFolder.locate`.

    Raises:
        ConfigError: The config's folder cannot be resolved.
    """
    try:
        real = config.resolve()
    except (OSError, RuntimeError) as error:  # the working directory is gone; a loop of links
        raise ConfigError(
            f"its folder cannot be found: {error}", where=str(config), remedy="Check the path and the current folder."
        ) from error
    marked = (folder for folder in real.parents if (folder / FOLDER).is_dir() or _is_project(folder))
    return next(marked, real.parent)


def _is_project(folder: Path) -> bool:
    """Return whether the folder's owner or this user owns its ``.git``: anyone can create one in ``/tmp``."""
    try:
        return (folder / ".git").lstat().st_uid in (folder.stat().st_uid, os.geteuid())  # a file in a worktree
    except OSError:
        return False
