"""Process trees of this machine, read from /proc: who descends from whom, with CPU time and memory.

Reading one process takes some 30 µs. The start time stands beside each id, because ids come back.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

import psutil

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """Process as proc_pid_stat(5) shows it.

    Attributes:
        name: Its command's name, at most 15 bytes.
        started_s: Time of its start since boot.
        waited_cpu_s: CPU time of its children that have ended and that it has waited for, with theirs.
        is_dead: Whether it has ended and only waits to be reaped.
    """

    name: str
    started_s: float
    parent: int
    session: int
    cpu_s: float
    waited_cpu_s: float
    resident_bytes: int
    is_dead: bool
    is_kernel_thread: bool


def process_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process; None if there is none of that id."""
    text = _text(f"/proc/{pid}/stat")
    if not text:
        return None
    head, _, rest = text.rpartition(")")  # the name may hold spaces and parentheses
    fields = rest.split()  # from field 3 on
    return ProcessStat(
        name=head.partition("(")[2],
        started_s=int(fields[19]) / _TICKS_PER_S,
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        waited_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        # One whose first thread alone has ended looks dead too, and still runs.
        is_dead=fields[0] in _DEAD and int(fields[17]) <= 1,
        is_kernel_thread=bool(int(fields[6]) & 0x00200000),  # PF_KTHREAD of the kernel's sched.h
    )


def all_processes() -> dict[int, ProcessStat]:
    """Return all processes of the machine that this user may see."""
    stats = ((int(name), process_stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid, stat in stats if stat is not None}


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, each after its parent; empty if it is gone.

    The kernel's own lists of children cost as much as the tree has threads. Kernels built without them leave
    the scan of all processes of the machine, which costs several times more on a large server.
    """
    found: list[int] = []
    parents = [pid]
    while parents:
        folder = f"/proc/{parents.pop()}/task"
        try:
            lists = [_text(f"{folder}/{thread}/children") for thread in os.listdir(folder)]
        except OSError:
            continue  # it has just ended
        if lists and all(children is None for children in lists) and os.path.exists(folder):
            return descendants_by_scan(pid)
        children = [int(child) for text in lists if text for child in text.split()]
        found += children
        parents += children
    return found


def descendants_by_scan(pid: int) -> list[int]:
    """Return all descendants of a process, found among all processes of the machine."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class ProcessTree:
    """Processes below some roots, the roots included: also those whose parents have ended since they were seen."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._known: dict[int, float] = {}  # process id → start
        self.add_roots(roots)

    def add_roots(self, roots: Iterable[int]) -> None:
        """Add processes, which are alive, with all that will be below them."""
        for pid in roots:
            if pid not in self._known and (stat := process_stat(pid)) is not None:
                self._known[pid] = stat.started_s

    def known(self) -> dict[int, ProcessStat]:
        """Return those that are still there of the processes that were found before, without looking for new ones."""
        found = {}
        for pid, started_s in list(self._known.items()):
            stat = process_stat(pid)
            if stat is None or stat.started_s != started_s:
                del self._known[pid]
            else:
                found[pid] = stat
        return found

    def look(self) -> dict[int, ProcessStat]:
        """Look for new processes, and return all that are there."""
        found = self.known()
        for root in [pid for pid, stat in found.items() if stat.parent not in found]:
            for pid in descendants(root):
                if pid not in found and (stat := process_stat(pid)) is not None:
                    found[pid] = stat
                    self._known[pid] = stat.started_s
        return found


def holders_of(pids: Iterable[int], device: str) -> frozenset[int]:
    """Return those of some processes that have a file open whose path begins like this, such as a device."""
    return frozenset(pid for pid in pids if _has_open(pid, device))


def _has_open(pid: int, device: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:  # it has ended
        return False
    for number in numbers:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"{folder}/{number}").startswith(device):
                return True
    return False


def _text(path: str) -> str | None:
    try:
        # A process may have any bytes in its name.
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


# Search for files that some process has open for writing, as far as this user may inspect processes.


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
        if not S_ISREG(about.st_mode):
            return None
        flags = _FLAGS.search(Path(f"/proc/{pid}/fdinfo/{number}").read_bytes())
    except OSError:  # closed meanwhile
        return None
    writes = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return (about.st_dev, about.st_ino) if writes else None
