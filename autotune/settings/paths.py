"""Queries to the file system about texts that may be paths: a config's values, the words of a command.

A text can be too long for a name, hold a zero byte or half a surrogate pair, or lead to a folder without permission.
For all of these the answer is "no such path": nothing here raises.
"""

import os
from pathlib import Path

_LONGEST_BYTES = 4096
"""Longest path: PATH_MAX of Linux, the zero byte at the end included."""

_NO_PATH = (OSError, ValueError, RecursionError)  # RecursionError: a chain of a thousand links


def path_of(text: str, folder: Path) -> Path | None:
    """Return the path that a text names; None if it can name none.

    Args:
        text: Relative, absolute, or with a user's home in front (``~``).
        folder: Folder that a relative path is relative to.
    """
    try:
        usable = 0 < len(os.fsencode(text)) < _LONGEST_BYTES and "\0" not in text
        return folder / os.path.expanduser(text) if usable else None
    except _NO_PATH:
        return None


def real_path(path: Path) -> Path | None:
    """Return the path with its links resolved, as far as it exists; None if it can be no path."""
    try:
        return Path(os.path.realpath(path))
    except _NO_PATH:
        return None


def exists(path: Path) -> bool:
    """Return whether something of that name exists and is visible to this user."""
    return os.path.exists(path)  # unlike `Path.exists`, which raises where a name is too long or a folder is closed


def is_program(path: Path) -> bool:
    """Return whether there is a file of that name that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same existing file."""
    try:
        return os.path.samefile(one, other)
    except _NO_PATH:
        return False


def holds_something(path: Path) -> bool:
    """Return whether there is a non-empty folder, or a file; False where this user may not look."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except NotADirectoryError:
        return os.path.exists(path)  # it is a file, or leads through one
    except _NO_PATH:
        return False
