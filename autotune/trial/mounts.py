"""Mounted file systems of this machine, and the disks below them."""

import os
import re
from pathlib import Path

import psutil

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|beegfs\w*|gpfs|glusterfs|orangefs|ocfs2|fuse\.(?!fuse-overlayfs|gvfs)\w+"
)


def file_system(path: Path) -> str | None:
    """Return the type of the file system that a path is on, or would be made on, such as ``ext4``; None if unknown."""
    place = Path(os.path.realpath(path))
    try:
        mounted = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    except OSError:
        return None
    # Of several on one point the last one is seen.
    return max(enumerate(mounted), key=lambda one: (len(one[1].mountpoint), one[0]))[1].fstype if mounted else None


def is_network(kind: str) -> bool:
    """Return whether a type of file system is on another machine, as far as its name tells."""
    return _NETWORK.fullmatch(kind) is not None


def is_rotating(path: Path) -> bool | None:
    """Return whether a path is on a disk that rotates; None if that is not known, as on most overlays and networks."""
    try:
        device = os.stat(path).st_dev
        place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return None
    for folder in (place, place.parent):  # a partition is a folder in that of its disk
        try:
            return (folder / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None
