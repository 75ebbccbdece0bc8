"""Deletion of folders that a trainer has filled, at any depth, with any names, and with links in them.

By rm(1): ``shutil.rmtree`` recurses into each level, and fails on a thousand nested folders. As a program,
``python deletion.py PATH...`` deletes at idle priority what there was no time for.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_ASIDE = ".deleted-"
_NO = subprocess.DEVNULL


def delete_tree(path: Path, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Delete a folder with all that is in it, or a single file; links are deleted, never followed.

    Anything on another file system (a mount) stays, and so does anything that the system refuses to delete.

    Args:
        is_over: Called now and then; once it returns True, the rest stays.

    Returns:
        True if nothing is left of it.
    """
    if os.path.lexists(path) and not is_over():
        _remove(path, is_over)
    return not os.path.lexists(path)


def _remove(path: Path, is_over: Callable[[], bool]) -> None:
    """Run the system's own rm(1) to its end, or until time is over."""
    program = shutil.which("rm", path=os.defpath) or "rm"
    command = (program, "-rf", "--one-file-system", "--", os.path.abspath(path))
    with (
        contextlib.suppress(OSError),
        subprocess.Popen(command, cwd="/", env={}, stdin=_NO, stdout=_NO, stderr=_NO) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
            if is_over():
                process.kill()


def discard(path: Path, is_over: Callable[[], bool], aside: Path) -> bool:
    """Delete a folder as `delete_tree` does; what there is no time for is moved aside for a process of its own.

    Args:
        aside: Folder on the same disk. `left_aside` finds there what that process did not come to delete.

    Returns:
        True if nothing is left of it at its place.
    """
    if delete_tree(path, is_over):
        return True
    if not is_over():
        return False
    moved = aside / f"{_ASIDE}{secrets.token_hex(8)}"
    try:
        os.rename(path, moved)
    except OSError:
        return False
    delete_apart([moved])
    return True


def left_aside(folder: Path) -> list[Path]:
    """Return what `discard` has moved into a folder and is still there."""
    return list(folder.glob(f"{_ASIDE}*"))


def delete_apart(paths: Sequence[Path]) -> None:
    """Delete folders in a process of its own, which outlives this one and runs only where nobody else wants a core."""
    command = [sys.executable, "-I", "-S", __file__, *map(os.fspath, paths)]
    with contextlib.suppress(OSError):  # where there is no room for a process, somebody deletes them later
        subprocess.run(command, cwd="/", env={}, start_new_session=True, check=False, stdin=_NO, stdout=_NO, stderr=_NO)


if __name__ == "__main__":
    if not os.fork():  # nobody waits for this one
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the disk's time follows from the core's
        for argument in sys.argv[1:]:
            delete_tree(Path(argument))
