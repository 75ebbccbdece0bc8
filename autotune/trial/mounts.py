"""Mounted file systems of this machine, and the disks below them."""

import os
import re
from pathlib import Path

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|beegfs\w*|gpfs|glusterfs|orangefs|ocfs2|fuse\.(?!fuse-overlayfs|gvfs)\w+"
)
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def file_system(path: Path) -> str | None:
    """Return the type of the file system that a path is on, or would be made on, such as ``ext4``; None if unknown."""
    place = os.fsencode(os.path.realpath(path))
    best, kind = b"", None
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:  # of several on one point the last one is seen
        fields, _, rest = line.partition(b" - ")
        words = fields.split(b" ")
        if len(words) < 5 or not rest:
            continue
        point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), words[4])
        is_above = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if is_above and len(point) >= len(best):
            best, kind = point, rest.split(b" ")[0].decode(errors="replace")
    return kind


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
