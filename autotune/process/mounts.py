"""Mounted file systems of this machine."""

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def file_system(path: Path) -> str | None:
    """Return the type of the file system that a path is on, or would be made on, such as ``ext4``; None if unknown."""
    place = os.fsencode(os.path.realpath(path))
    best, kind = b"", None
    try:
        lines = _MOUNTS.read_bytes().splitlines()
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
