"""Ownership of folders: checks whether somebody else could plant files in our folder, or replace it by one of theirs.

The trainer imports code from the trial's folder, so anyone who can write to the state folder, or rename it, can run
code as this user.
"""

import grp
import os
import pwd
import stat
from pathlib import Path


def owners_for(config: Path) -> frozenset[int]:
    """Return the ids of the users whose state folders may be used: this one; for root also the owner of the config."""
    me = os.geteuid()
    if me != 0:
        return frozenset({me})
    try:
        return frozenset({0, config.stat().st_uid})
    except OSError:  # it is still to be made
        return frozenset({0})


def why_not_ours(folder: Path, owners: frozenset[int]) -> str | None:
    """Return the reason for which a folder must not be used; None if it may be, or does not exist."""
    try:
        status = folder.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if status.st_uid not in owners:
        return f"it belongs to {_name(status.st_uid)}"
    if _others_may_write(status):
        return f"others may write to it ({stat.filemode(status.st_mode)})"
    return None


def why_exposed(place: Path) -> str | None:
    """Return the reason for which a folder in this place could be replaced by others; None if only its owner could.

    Replacing it needs write permission on one of the folders above it, up to the root. In one with the sticky bit, like
    ``/tmp``, nobody can remove files of others. A folder above that belongs to another user counts as open to that
    user, except those of root and of the owner of ``/`` (root by another number in a container). For root the owners
    above do not count: root works in the folders of others on purpose, and the owner of a folder above a config can
    replace the config, and so choose the command, anyway.

    Args:
        place: The folder that holds, or is to hold, the state folder; links resolved.
    """
    me = os.geteuid()
    for folder in (place, *place.parents):
        try:
            status = folder.stat()
        except OSError:  # still to be made
            continue
        if _others_may_write(status) and not status.st_mode & stat.S_ISVTX:
            return f"others may write to {folder} ({stat.filemode(status.st_mode)})"
        if me != 0 and status.st_uid not in (me, 0, os.stat("/").st_uid):
            return f"{folder} belongs to {_name(status.st_uid)}"
    return None


def _others_may_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether nobody but a folder's owner, and root, is in its group.

    Where each user has a group of their own, the usual umask lets it write, so most folders are open to such a group.
    """
    name = _name(uid)
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    return set(group.gr_mem) <= {name, "root"} and (gid in (0, uid) or group.gr_name == name)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
