"""Facts of the host, its file systems and processes; CPU time and memory of a trial's processes."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import psutil

from autotune.clock import Clock, Poller, SystemClock
from autotune.measure.probe import HostUsage

# Of one core (with the loop around it 0.01): samples of hundreds of threads are expensive, so less frequent.
_COST_SHARE = 0.008
_LEAST_COVERED = 0.5
_BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16")  # the last one is ARM's


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Resources of the machine that this process may use.

    Attributes:
        cores: CPUs in its affinity, or a cgroup's quota rounded up if less; at least 1.
        memory_bytes: Main memory, or a cgroup's limit if less.
        cpu_bfloat16: Whether the CPU has bfloat16 instructions.
    """

    cores: int
    memory_bytes: int
    cpu_model: str
    cpu_bfloat16: bool
    hostname: str
    boot_id: str | None


def machine_facts(root: Path = Path("/")) -> MachineFacts:
    """Read the facts; ``proc`` and ``sys`` are mounted in ``root``."""
    quotas = (quota for folder in cgroup_folders(root) if (quota := cpu_quota(folder)) is not None)
    cores = [float(len(os.sched_getaffinity(0))), *quotas]
    memory = [psutil.virtual_memory().total, *memory_limits(root)]
    cpuinfo = (text_of(root / "proc/cpuinfo") or "").splitlines()
    models = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    features = {word for line in cpuinfo if line.startswith(("flags", "Features")) for word in line.split()}
    return MachineFacts(
        cores=max(1, math.ceil(min(cores))),
        memory_bytes=min(memory),
        cpu_model=models[0] if models else platform.machine(),  # ARM kernels print no model
        cpu_bfloat16=not features.isdisjoint(_BFLOAT16_FEATURES),
        hostname=platform.node(),
        boot_id=text_of(root / "proc/sys/kernel/random/boot_id"),
    )


@dataclass(frozen=True, kw_only=True)
class MemoryState:
    """Current state of the memory that this process may use.

    Attributes:
        total_bytes: Main memory, or a cgroup's limit if that is less.
        available_bytes: Without swapping.
        limit_bytes: The cgroup's limit; None if none is below the machine's memory.
        pressure: From `io_pressure`.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_used_bytes: int
    pressure: float | None


def memory_state(root: Path = Path("/")) -> MemoryState:
    """Read the state; ``proc`` and ``sys`` are mounted in ``root``."""
    memory = psutil.virtual_memory()
    limits = [limit for limit in memory_limits(root) if limit < memory.total]
    left = [max(0, limit - used) for folder in cgroup_folders(root) for limit, used in _limit_and_use(folder)]
    return MemoryState(
        total_bytes=min([memory.total, *limits]),
        available_bytes=min([memory.available, *left]),
        limit_bytes=min(limits, default=None),
        swap_used_bytes=psutil.swap_memory().used,
        pressure=io_pressure(root / "proc/pressure/memory"),
    )


def _limit_and_use(folder: Path) -> list[tuple[int, int]]:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        texts = text_of(folder / limit) or "", text_of(folder / used) or ""
        if texts[0].isdecimal() and texts[1].isdecimal():
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", text_of(folder / "memory.stat") or "", re.MULTILINE)
            return [(int(texts[0]), int(texts[1]) - (int(cached[1]) if cached else 0))]
    return []


def asleep_s() -> float:
    """Return how long the machine has been suspended since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def io_pressure(path: Path = Path("/proc/pressure/io")) -> float | None:
    """Return the share of the last 10 s, 0..1, in which some process waited for a disk, or for `path`'s resource."""
    text = text_of(path)
    match = re.search(r"^some avg10=(\d+(?:\.\d+)?)", text or "", re.MULTILINE)
    return None if match is None else min(1.0, float(match[1]) / 100.0)


def is_in_container() -> bool:
    """Return whether marks of Docker, Podman, LXC or Kubernetes show a container."""
    marks = (".dockerenv", "run/.containerenv", "run/secrets/kubernetes.io", "run/host/container-manager")
    return any(Path("/", mark).exists() for mark in marks)


class _Sample(NamedTuple):
    t_s: float
    cpu_s: float
    memory_bytes: int


class HostProbe:
    """`Probe` of the CPU time and memory of all processes of a trial.

    A thread samples up to 4 times a second, less often if that would take 1 % of a core. Ended processes keep their
    last CPU time; short-lived ones count through the accounts of their parents.

    A trial's processes are those below this one that carry its id, are in the session of the opened process, or started
    below such a process, daemons included.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._samples: list[_Sample] = []
        self._cpu_s: dict[tuple[int, float], float] = {}  # by pid and start: pids come back
        self._pids: frozenset[int] = frozenset()
        self._poller: Poller | None = None

    def open(self, trial_id: str, pid: int) -> None:
        first = process_stat(pid)
        session = 0 if first is None else first.session
        self._poller = Poller(lambda: self._read(trial_id, pid, session), name=f"host-probe-{pid}")
        self._poller.start()

    def between(self, t0_s: float, t1_s: float) -> HostUsage | None:
        """Return the usage, with CPU time as a mean over the samples inside; None before the first sample."""
        with self._lock:
            samples, pids = [sample for sample in self._samples if sample.t_s <= t1_s], self._pids
        if not samples:
            return None
        inside = [sample for sample in samples if sample.t_s >= t0_s]
        cpu_cores = None
        if len(inside) >= 2 and inside[-1].t_s - inside[0].t_s >= _LEAST_COVERED * (t1_s - t0_s):
            cpu_cores = (inside[-1].cpu_s - inside[0].cpu_s) / (inside[-1].t_s - inside[0].t_s)
        return HostUsage(
            cpu_cores=cpu_cores,
            peak_memory_bytes=max(sample.memory_bytes for sample in samples),
            memory=tuple((sample.t_s, sample.memory_bytes) for sample in inside),
            pids=pids,
        )

    def close(self) -> None:
        if self._poller is not None:
            self._poller.stop()
            self._poller = None

    def _read(self, trial_id: str, first: int, session: int) -> float | None:
        """Take a sample; return the seconds until the next, None if no process of the trial is left."""
        began_s = time.thread_time()
        stats = self._of_the_trial(trial_id, first, session)
        if not stats:
            return None
        self._cpu_s |= {(pid, stat.started_s): stat.cpu_s for pid, stat in stats.items()}
        memory_bytes = sum(stat.resident_bytes for stat in stats.values())
        with self._lock:
            self._pids |= stats.keys()
            before_s = self._samples[-1].cpu_s if self._samples else 0.0
            cpu_s = max(math.fsum(self._cpu_s.values()), _own_s(stats, waited=True), before_s)
            self._samples.append(_Sample(self._clock.now_s(), cpu_s, memory_bytes))
        return max(0.25, (time.thread_time() - began_s) / _COST_SHARE)

    def _of_the_trial(self, trial_id: str, first: int, session: int) -> dict[int, ProcessStat]:
        below = {pid: stat for pid in descendants(os.getpid()) if (stat := process_stat(pid)) is not None}
        own: dict[int, ProcessStat] = {}
        for pid, stat in below.items():
            if (
                stat.parent in own
                or pid == first
                or (pid, stat.started_s) in self._cpu_s  # its parent has ended since
                or (stat.session == session and session in below)  # else it is the session of our own terminal
                or _carries(pid, trial_id)
            ):
                own[pid] = stat
        return own


def _carries(pid: int, trial_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"AUTOTUNE_TRIAL_ID={trial_id}".encode() in file.read().split(b"\0")
    except OSError:
        return False


# Limits of cgroups v1 and v2 on CPU time and memory.


def cpu_quota(folder: Path) -> float | None:
    """Return the cgroup's limit in cores; None if it sets none."""
    quota, _, period = (text_of(folder / "cpu.max") or "max").partition(" ")  # v2: one file
    if quota == "max":
        quota = text_of(folder / "cpu.cfs_quota_us") or "-1"  # v1: two
        period = text_of(folder / "cpu.cfs_period_us") or ""
    return int(quota) / int(period) if int(quota) > 0 and period else None


def memory_limits(root: Path) -> Iterator[int]:
    """Yield the limits in bytes; v1 writes a number beyond any machine's memory for no limit."""
    for folder in cgroup_folders(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = text_of(folder / name)
            if limit is not None and limit.isdecimal():
                yield int(limit)


def cgroup_folders(root: Path) -> list[Path]:
    """Return the folders of this process's cgroups in every hierarchy, each before its ancestors.

    Those that don't exist are skipped: a container may show the host's paths.
    """
    folders = []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = [controllers, *controllers.split(",")] if controllers else [".", "unified"]
        for mount in dict.fromkeys(mounts):
            top = root / "sys/fs/cgroup" / mount
            own = top / path.lstrip("/")
            ancestors = [own, *own.parents]
            folders += [folder for folder in ancestors if folder.is_relative_to(top) and folder.is_dir()]
    return folders


def text_of(path: Path | str) -> str | None:
    """Return the stripped text of a file of the kernel; None if it cannot be read."""
    try:
        # Not Path.read_text: some are read many times a second. Names may hold any bytes.
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


# Fields of /proc/stat for processes: user (guests included), nice, system. Interrupts and time that the hypervisor
# gave to other machines belong to no process.
_OF_PROCESSES = slice(0, 3)


class BusyCpu:
    """Reader of the CPU time that processes have used on the cores available to this process.

    Under a cgroup quota it is the time of the cgroup's processes; otherwise that on the cores of this process's
    affinity.

    Attributes:
        cores: Number of these cores, or the quota; above 0.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._usable = frozenset(f"cpu{number}" for number in os.sched_getaffinity(0))
        self.cores = float(len(self._usable))
        self._usage: Path | None = None
        folders = cgroup_folders(root)
        quotas = [(quota, folder) for folder in folders if (quota := cpu_quota(folder)) is not None]
        if quotas and min(quotas)[0] < self.cores:
            quota, folder = min(quotas)
            # v1 has the account in a separate hierarchy, in which our path may be the same.
            accounts = [place / name for place in (folder, *folders) for name in ("cpu.stat", "cpuacct.usage")]
            self._usage = next((account for account in accounts if _account_s(account) is not None), None)
            self.cores = quota
        present = {line.partition(" ")[0] for line in self._lines()} - {"cpu"}
        self.is_whole_machine = self._usage is None and present <= self._usable

    def busy_s(self) -> float | None:
        """Return that time in seconds from an arbitrary zero; None if the kernel does not report it."""
        if self._usage is not None:
            return _account_s(self._usage)
        wanted = {"cpu"} if self.is_whole_machine else self._usable
        rows = [line.split() for line in self._lines()]
        times = [[int(field) for field in row[1:]] for row in rows if row[0] in wanted]
        if not any(map(any, times)):  # gVisor shows zeros
            return None
        return sum(sum(fields[_OF_PROCESSES]) for fields in times) / _TICKS_PER_S

    def _lines(self) -> list[str]:
        return [line for line in (text_of(self._stat) or "").splitlines() if line.startswith("cpu")]


def _account_s(account: Path) -> float | None:
    """Return the CPU time of a cgroup: cpu.stat (v2) counts µs, cpuacct.usage (v1) ns."""
    text = text_of(account) or ""
    if account.name == "cpuacct.usage":
        return int(text) / 1e9 if text.isdecimal() else None
    rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(rows["usage_usec"]) / 1e6 if "usage_usec" in rows else None


@dataclass(frozen=True, kw_only=True)
class CpuSample:
    """CPU times at one moment, with own processes by id."""

    t_s: float
    busy_s: float
    own: Mapping[int, ProcessStat]


def foreign_cores(before: CpuSample, after: CpuSample) -> float:
    """Return the mean number of cores that other processes used between two samples; at least 0.

    An ended process's time moves to its parent's account, or is lost. So the difference of all accounts and the time of
    processes that still run are lower bounds of the own time; the larger one is used.
    """
    all_accounts_s = _own_s(after.own, waited=True) - _own_s(before.own, waited=True)
    stayed = {pid: stat for pid, stat in before.own.items() if _is_same(after.own.get(pid), stat)}
    still_there_s = _own_s(after.own, waited=False) - _own_s(stayed, waited=False)
    own_s = max(all_accounts_s, still_there_s, 0.0)
    return max(0.0, after.busy_s - before.busy_s - own_s) / (after.t_s - before.t_s)


def _own_s(stats: Mapping[int, ProcessStat], *, waited: bool) -> float:
    return sum(stat.cpu_s + (stat.waited_cpu_s if waited else 0.0) for stat in stats.values())


def _is_same(one: ProcessStat | None, other: ProcessStat) -> bool:
    return one is not None and one.started_s == other.started_s


@dataclass(frozen=True, kw_only=True)
class BusyProcess:
    """Process that uses the CPU; `cores` is a mean that includes ended children."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, kw_only=True)
class ForeignProcesses:
    """CPU use of other processes between two listings.

    Attributes:
        kernel_cores: Of kernel threads, e.g. writing to disks, possibly for this process.
    """

    busiest: BusyProcess | None
    kernel_cores: float


def foreign_processes(
    before: Mapping[int, ProcessStat], after: Mapping[int, ProcessStat], own: Collection[int], *, span_s: float
) -> ForeignProcesses:
    """Return the CPU use of other processes; ``span_s`` is the time between the listings, above 0."""
    kernel_s, busiest = 0.0, None
    for pid, stat in after.items():
        if pid in own:
            continue
        earlier = before.get(pid)
        used_s = stat.cpu_s + stat.waited_cpu_s
        if _is_same(earlier, stat) and earlier is not None:
            used_s -= earlier.cpu_s + earlier.waited_cpu_s
        if stat.is_kernel_thread:
            kernel_s += used_s
        elif used_s > 0 and (busiest is None or used_s / span_s > busiest.cores):
            busiest = BusyProcess(pid=pid, name=stat.name, cores=used_s / span_s)
    return ForeignProcesses(busiest=busiest, kernel_cores=kernel_s / span_s)


# Mounted file systems, and the disks below them.


_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|beegfs\w*|gpfs|glusterfs|orangefs|ocfs2|fuse\.(?!fuse-overlayfs|gvfs)\w+"
)


def file_system(path: Path) -> str | None:
    """Return the type of file system of an existing or future path, e.g. ``ext4``."""
    place = Path(os.path.realpath(path))
    try:
        mounted = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    except OSError:
        return None
    # Of several mounts on one point the last one is visible.
    return max(enumerate(mounted), key=lambda one: (len(one[1].mountpoint), one[0]))[1].fstype if mounted else None


def is_network(kind: str) -> bool:
    """Return whether this type of file system is on another machine, judging by its name."""
    return _NETWORK.fullmatch(kind) is not None


def is_rotating(path: Path) -> bool | None:
    """Return whether a path is on a rotating disk; None if unknown."""
    try:
        device = os.stat(path).st_dev
        place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return None
    # the folder of a partition is in that of its disk
    values = (text_of(folder / "queue" / "rotational") for folder in (place, place.parent))
    return next((text == "1" for text in values if text is not None), None)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """Process as proc_pid_stat(5) shows it.

    Attributes:
        name: Name of its command, at most 15 bytes.
        started_s: Start time since boot.
        waited_cpu_s: CPU time of its reaped descendants.
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
    """Return the state of a process; None without one of that id."""
    text = text_of(f"/proc/{pid}/stat")
    if not text:
        return None
    head, _, rest = text.rpartition(")")  # the name may hold spaces and parentheses
    fields = rest.split()  # fields 3 and later
    return ProcessStat(
        name=head.partition("(")[2],
        started_s=int(fields[19]) / _TICKS_PER_S,
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        waited_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        # A process whose first thread has ended looks dead too; it runs if it has others.
        is_dead=fields[0] in _DEAD and int(fields[17]) <= 1,
        is_kernel_thread=bool(int(fields[6]) & 0x00200000),  # PF_KTHREAD of the kernel's sched.h
    )


def all_processes() -> dict[int, ProcessStat]:
    """Return all processes that this user may see."""
    stats = ((int(name), process_stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid, stat in stats if stat is not None}


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, parents first, by the kernel's lists of children; empty if it is gone."""
    found: list[int] = []
    parents = [pid]
    while parents:
        folder = f"/proc/{parents.pop()}/task"
        try:
            lists = [text_of(f"{folder}/{thread}/children") for thread in os.listdir(folder)]
        except OSError:
            continue  # it has just ended
        if lists and all(children is None for children in lists) and os.path.exists(folder):
            return descendants_by_scan(pid)
        children = [int(child) for text in lists if text for child in text.split()]
        found += children
        parents += children
    return found


def descendants_by_scan(pid: int) -> list[int]:
    """Return the same by a scan of all processes, which takes longer, for kernels without these lists."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class ProcessTree:
    """Processes below some roots, the roots included; a process stays known when its parent ends."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._known: dict[int, float] = {}  # process id → start
        self.add_roots(roots)

    def add_roots(self, roots: Iterable[int]) -> None:
        for pid in roots:
            if pid not in self._known and (stat := process_stat(pid)) is not None:
                self._known[pid] = stat.started_s

    def known(self) -> dict[int, ProcessStat]:
        found = {}
        for pid, started_s in list(self._known.items()):
            stat = process_stat(pid)
            if stat is None or stat.started_s != started_s:
                del self._known[pid]
            else:
                found[pid] = stat
        return found

    def look(self) -> dict[int, ProcessStat]:
        found = self.known()
        for root in [pid for pid, stat in found.items() if stat.parent not in found]:
            for pid in descendants(root):
                if pid not in found and (stat := process_stat(pid)) is not None:
                    found[pid] = stat
                    self._known[pid] = stat.started_s
        return found


def holders_of(pids: Iterable[int], device: str) -> frozenset[int]:
    """Return the processes that have a file open whose path has this prefix, such as a device."""
    return frozenset(pid for pid in pids if _has_open(pid, device))


def _has_open(pid: int, device: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # just closed
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(device):
                    return True
    return False


_FLAGS = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)


def files_being_written() -> frozenset[tuple[int, int]]:
    """Return the device and inode of each regular file that a process visible to this user has open for writing."""
    found: set[tuple[int, int]] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # ended, or another user's
            continue
        found.update(file for number in numbers if (file := _written_through(pid, number)))
    return frozenset(found)


def _written_through(pid: str, number: str) -> tuple[int, int] | None:
    try:
        about = os.stat(f"/proc/{pid}/fd/{number}")
        if not S_ISREG(about.st_mode):
            return None
        flags = _FLAGS.search(Path(f"/proc/{pid}/fdinfo/{number}").read_bytes())
    except OSError:  # just closed
        return None
    writes = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return (about.st_dev, about.st_ino) if writes else None
