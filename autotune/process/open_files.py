"""Search for files that some process has open for writing, as far as this user may inspect processes."""

import os
import re
import stat
from pathlib import Path

_FLAGS = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)


def files_being_written() -> frozenset[tuple[int, int]]:
    """Return the device and inode of each regular file that is open for writing."""
    found: set[tuple[int, int]] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # gone, or somebody else's
            continue
        found.update(file for number in numbers if (file := _written_through(pid, number)))
    return frozenset(found)


def _written_through(pid: str, number: str) -> tuple[int, int] | None:
    try:
        about = os.stat(f"/proc/{pid}/fd/{number}")
        if not stat.S_ISREG(about.st_mode):
            return None
        flags = _FLAGS.search(Path(f"/proc/{pid}/fdinfo/{number}").read_bytes())
    except OSError:  # closed meanwhile
        return None
    writes = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return (about.st_dev, about.st_ino) if writes else None
