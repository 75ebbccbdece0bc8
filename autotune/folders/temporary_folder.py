"""Folder for the temporary files of one trial: what ``TMPDIR`` names there.

It is inside the trial's folder. Sockets are made in it too (multiprocessing, PyTorch's shared memory), whose paths
have 107 bytes at most: where that does not suffice, it is a short folder in the system's place for temporary files,
with a name that follows from the trial's folder, so that a later search can find and delete it.
"""

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.files import make_private_folder
from autotune.folders.deletion import delete_apart, delete_tree

VARIABLE = "TMPDIR"

_LONGEST_SOCKET_BYTES = 107  # unix(7)
_LONGEST_NAME_BYTES = len("/torch-shm-dir-XXXXXX/manager.sock")  # the longest known, below it
_LONGEST_BYTES = _LONGEST_SOCKET_BYTES - _LONGEST_NAME_BYTES
_SHORT_PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - the folder is private, and checked before it is used

_log = logging.getLogger(__name__)


def temporary_folder(trial: Path) -> Path:
    """Return the path of a trial's folder for temporary files; it need not exist.

    Args:
        trial: The trial's folder.
    """
    real = os.path.realpath(trial)
    inside = Path(real, "tmp")
    if len(os.fsencode(inside)) <= _LONGEST_BYTES:
        return inside
    name = f"autotune-{os.getuid()}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"
    places = (Path(place, name) for place in (os.path.realpath(tempfile.gettempdir()), *_SHORT_PLACES))
    return next((path for path in places if len(os.fsencode(path)) <= _LONGEST_BYTES), inside)


def make_temporary_folder(trial: Path) -> None:
    """Make a trial's folder for temporary files; log a warning if that fails: programs then use the system's own."""
    folder = temporary_folder(trial)
    try:
        if not os.path.lexists(folder):
            make_private_folder(folder)
        if not _is_ours(folder):
            _log.warning("%s is not this user's own; temporary files of the trial are not kept apart", folder)
    except OSError as error:
        _log.warning("%s cannot be made: %s", folder, error.strerror)


def delete_temporary_folder(trial: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    """Delete a trial's temporary files; log a warning if that fails.

    Args:
        trial: The trial's folder.
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    folder = temporary_folder(trial)
    if not _is_ours(folder) or delete_tree(folder, is_over):
        return
    if is_over():
        delete_apart([folder])
    else:
        _log.warning("%s could not be deleted completely", folder)


def delete_left_temporary_folders(trials: Path, is_over: Callable[[], bool]) -> None:
    """Delete the temporary files outside their folders that trials of a killed search have left on this machine.

    To be called by the holder of the study's lock, while none of its own trials is going on. Those inside a trial's
    folder are deleted with it: on a shared disk, that trial may be going on elsewhere.

    Args:
        trials: The folder that holds the trials of the study.
        is_over: Returns whether no time is left for it; what is left then, a process of its own deletes.
    """
    with contextlib.suppress(OSError), os.scandir(trials) as entries:
        for entry in entries:
            if not temporary_folder(Path(entry.path)).is_relative_to(os.path.realpath(trials)):
                delete_temporary_folder(Path(entry.path), is_over)


def _is_ours(folder: Path) -> bool:
    """Return whether it is a real folder of this user's that nobody else can write to."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
