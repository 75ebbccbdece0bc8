"""CPU load of the machine, the part of it that is not ours, and the process that makes most of it."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.measure.cgroups import cgroup_folders, cpu_quota, text_of
from autotune.process.process_tree import ProcessStat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of a line of /proc/stat that are the work of processes: user (guests included), nice, system. Interrupts are
# nobody's, and what the hypervisor gave to other machines is none of this one's processes either.
_OF_PROCESSES = slice(0, 3)


class BusyCpu:
    """Reader of the CPU time that processes have used of the cores which this process may use.

    In a cgroup with a quota that is the time of all processes in that cgroup: /proc/stat shows the host's cores there,
    most of them other people's. Else it is the time of the cores on which this process may run.

    Args:
        root: Folder in which ``proc`` and ``sys`` are mounted.

    Attributes:
        cores: Number of these cores, or the quota; above 0.
        is_whole_machine: Whether they are all cores that the machine has.
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
            # The first version has the account in a hierarchy of its own, where our path may be the same.
            accounts = [place / name for place in (folder, *folders) for name in ("cpu.stat", "cpuacct.usage")]
            self._usage = next((account for account in accounts if _account_s(account) is not None), None)
            self.cores = quota
        present = {line.partition(" ")[0] for line in self._lines()} - {"cpu"}
        self.is_whole_machine = self._usage is None and present <= self._usable

    def busy_s(self) -> float | None:
        """Return that time in seconds since some moment; None where the kernel does not tell it."""
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
    """Return the CPU time of a cgroup: cpu.stat of the second version in µs, cpuacct.usage of the first in ns."""
    text = text_of(account) or ""
    if account.name == "cpuacct.usage":
        return int(text) / 1e9 if text.isdecimal() else None
    rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(rows["usage_usec"]) / 1e6 if "usage_usec" in rows else None


@dataclass(frozen=True, kw_only=True)
class CpuSample:
    """CPU times at one moment.

    Attributes:
        t_s: Monotonic time.
        busy_s: See `BusyCpu.busy_s`.
        own: Our processes, by id.
    """

    t_s: float
    busy_s: float
    own: Mapping[int, ProcessStat]


def foreign_cores(before: CpuSample, after: CpuSample) -> float:
    """Return the cores that others used between two samples, on average; at least 0.

    A process that has ended took its time with it: into its parent's account of those that it has waited for, or, where
    the parent does not care for its children, nowhere. So there are two lower bounds of our own time: the difference of
    all accounts, and the time of those alone that are still there; the larger one counts.
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
    """Process that uses the CPU.

    Attributes:
        pid: Its id.
        name: Its command's name.
        cores: Cores that it used on average, with its children that have ended.
    """

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, kw_only=True)
class ForeignProcesses:
    """Use of the CPU by others, between two looks at all processes.

    Attributes:
        busiest: The process that used most; None if none used any.
        kernel_cores: Cores that threads of the kernel used: they write to disks, also for us, and are nobody.
    """

    busiest: BusyProcess | None
    kernel_cores: float


def foreign_processes(
    before: Mapping[int, ProcessStat], after: Mapping[int, ProcessStat], own: Collection[int], *, span_s: float
) -> ForeignProcesses:
    """Return the use of the CPU by others.

    Args:
        before: All processes at the first look.
        after: All processes at the second look.
        own: Our processes, which do not count.
        span_s: Time between the looks, above 0.
    """
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
