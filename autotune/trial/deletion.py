"""Deletion of folders that a trainer has filled, at any depth, with any names, and with links in them.

``shutil.rmtree`` recurses into each level and keeps it open: it fails on a thousand nested folders. Here each nested
folder is moved up to the top first, so that two descriptors and one level are enough at any depth.

As a program, ``python deletion.py PATH...`` deletes at idle priority what there was no time for.
"""

import contextlib
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_ASIDE = ".deleted-"


def delete_tree(path: Path, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Delete a folder with all that is in it, or a single file; links are deleted, never followed.

    Anything on another file system (a mount) stays, and so does anything that the system refuses to delete.

    Args:
        is_over: Called between files; once it returns True, the rest stays.

    Returns:
        True if nothing is left of it.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return True
        top = _opened(str(path), None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _empty(top, is_over)
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError:
        return not os.path.lexists(path)
    return True


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
    with contextlib.suppress(OSError):  # where there is no room for a process, somebody deletes them later
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, *map(os.fspath, paths)],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )


def _empty(top: int, is_over: Callable[[], bool]) -> None:
    device = os.fstat(top).st_dev
    moved, unused = 0, f".deleted-{secrets.token_hex(8)}"
    waiting = _take_files(top, is_over)
    while waiting and not is_over():
        name = waiting.pop()
        try:
            folder = _opened(name, top)
        except OSError:
            continue
        try:
            for below in _take_files(folder, is_over) if os.fstat(folder).st_dev == device else ():
                moved += 1
                new_name = f"{unused}-{moved}"
                if _move(below, folder, new_name, top):
                    waiting.append(new_name)
        finally:
            os.close(folder)
        with contextlib.suppress(OSError):  # the check of the whole folder finds what stays in it
            os.rmdir(name, dir_fd=top)


def _take_files(folder: int, is_over: Callable[[], bool]) -> list[str]:
    below = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if is_over():
                break
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
    return below


def _move(name: str, source: int, new_name: str, target: int) -> bool:
    """Move a folder up; return False if it cannot be moved, e.g. a mount: then it stays with its parent."""
    for is_last in (False, True):
        try:
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except PermissionError:
            if is_last:
                return False
            with contextlib.suppress(OSError):  # a folder that may not be written to cannot change its parent
                os.close(_opened(name, source))
        except OSError:
            return False
        else:
            return True
    return False


def _opened(name: str, within: int | None) -> int:
    """Open a folder for reading and emptying, even if its owner (this user) has removed their own permissions."""
    pinned = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        about = os.fstat(pinned)
        if about.st_uid == os.geteuid() and about.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{pinned}", stat.S_IRWXU)  # this very folder, whatever has its name by now
        return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(pinned)


if __name__ == "__main__":
    if not os.fork():  # nobody waits for this one
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the disk's time follows from the core's
        for argument in sys.argv[1:]:
            delete_tree(Path(argument))
