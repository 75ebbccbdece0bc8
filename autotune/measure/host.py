"""Facts of the host, and the CPU time and memory of the processes of a trial."""

import math
import os
import platform
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.clock import Clock, SystemClock
from autotune.measure.cgroups import cgroup_folders, cpu_quotas, memory_limits, text_of
from autotune.measure.polling import Poller
from autotune.measure.probe import HostUsage, Probe, TrialProcesses
from autotune.process.process_tree import ProcessStat, descendants, process_stat

_FASTEST_S = 0.25
# Of one core (the loop around it makes 0.01): where a sample is dear, with hundreds of threads, the next comes later.
_COST_SHARE = 0.008
_LEAST_COVERED = 0.5


_BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16")  # x86, and ARM's in the end


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Resources of the machine that this process may use.

    Attributes:
        cores: CPUs that it may run on, a cgroup's quota rounded up; at least 1.
        memory_bytes: Main memory, or a cgroup's limit if that is less.
        cpu_model: Model of the CPU as the kernel prints it.
        cpu_bfloat16: True if the CPU multiplies bfloat16 itself.
        hostname: The node's name.
        boot_id: The kernel's name for this boot: it tells a restarted machine from one that went on. None if
            the kernel does not say.
    """

    cores: int
    memory_bytes: int
    cpu_model: str
    cpu_bfloat16: bool
    hostname: str
    boot_id: str | None


def machine_facts(root: Path = Path("/")) -> MachineFacts:
    """Read the facts of the machine.

    Args:
        root: Folder in which ``proc`` and ``sys`` are mounted.
    """
    cores = [float(len(os.sched_getaffinity(0))), *cpu_quotas(root)]
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
    """State of the memory that this process may use, right now.

    Attributes:
        total_bytes: Main memory, or a cgroup's limit if that is less.
        available_bytes: Part of it that a program can have without swapping.
        limit_bytes: The cgroup's limit; None if none is below the machine's memory.
        swap_used_bytes: Swap in use on the whole machine.
        pressure: Share of the last 10 s, 0..1, in which some process waited for memory; None where that is not told.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_used_bytes: int
    pressure: float | None


def memory_state(root: Path = Path("/")) -> MemoryState:
    """Read the state of the memory.

    Args:
        root: Folder in which ``proc`` and ``sys`` are mounted.
    """
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
    """Return the limit of a cgroup, and what is in use of it that cannot be taken back."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        texts = text_of(folder / limit) or "", text_of(folder / used) or ""
        if texts[0].isdecimal() and texts[1].isdecimal():
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", text_of(folder / "memory.stat") or "", re.MULTILINE)
            return [(int(texts[0]), int(texts[1]) - (int(cached[1]) if cached else 0))]
    return []


def asleep_s() -> float:
    """Return the time since boot for which the machine was suspended: the monotonic clock stood still then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def io_pressure(path: Path = Path("/proc/pressure/io")) -> float | None:
    """Return the share of the last 10 s, 0..1, in which some process waited for a disk; None where that is not told.

    Args:
        path: The kernel's file; that of another resource has the same form.
    """
    text = text_of(path)
    match = re.search(r"^some avg10=(\d+(?:\.\d+)?)", text or "", re.MULTILINE)
    return None if match is None else min(1.0, float(match[1]) / 100.0)


def is_in_container(root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, as far as Docker, Podman, LXC and Kubernetes let that be seen.

    Args:
        root: Folder in which all others are.
    """
    marks = (".dockerenv", "run/.containerenv", "run/secrets/kubernetes.io", "run/host/container-manager")
    return any((root / mark).exists() for mark in marks)


@dataclass(frozen=True, kw_only=True)
class _Sample:
    t_s: float
    cpu_s: float
    memory_bytes: int
    peak_memory_bytes: int


class HostProbe:
    """Probe of the CPU time and memory of all processes of a trial; see `Probe`.

    It samples up to 4 times a second from a thread of its own, less often where a sample is so dear that this
    would take more than 1 % of a core. A process that has ended keeps the CPU time last seen of it.

    Of the processes below this one those are the trial's that carry its id, that are in the session of the one it was
    opened with (the guard gives each trial one), or that began below such a process: the launcher of several training
    processes and each of these, whether or not they report steps, also one that has made itself a daemon since.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._samples: list[_Sample] = []
        self._cpu_s: dict[tuple[int, float], float] = {}  # by pid and start: pids come back
        self._pids: frozenset[int] = frozenset()
        self._poller: Poller | None = None

    def open(self, device: TrialProcesses) -> None:
        """Start watching a trial; one that is already gone gives no samples."""
        first = process_stat(device.pid)
        session = 0 if first is None else first.session
        self._poller = Poller(lambda: self._read(device, session), name=f"host-probe-{device.pid}")
        self._poller.start()

    def between(self, t0_s: float, t1_s: float) -> HostUsage | None:
        """Return the usage; see `Probe.between`. CPU time is the mean over the samples inside.

        Returns:
            None before the first sample.
        """
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
            peak_memory_bytes=samples[-1].peak_memory_bytes,
            memory=tuple((sample.t_s, sample.memory_bytes) for sample in inside),
            pids=pids,
        )

    def close(self) -> None:
        """Stop watching; see `Probe.close`."""
        if self._poller is not None:
            self._poller.stop()
            self._poller = None

    def _read(self, trial: TrialProcesses, session: int) -> float | None:
        """Take a sample; return the seconds until the next, None once nothing of the trial is left."""
        began_s = time.thread_time()
        stats = self._of_the_trial(trial, session)
        if not stats:
            return None
        memory_bytes = 0
        for pid, stat in stats.items():
            self._cpu_s[pid, stat.started_s] = stat.cpu_s
            memory_bytes += stat.resident_bytes
        with self._lock:
            self._pids |= stats.keys()
            before = self._samples[-1].peak_memory_bytes if self._samples else 0
            self._samples.append(
                _Sample(
                    t_s=self._clock.now_s(),
                    cpu_s=math.fsum(self._cpu_s.values()),
                    memory_bytes=memory_bytes,
                    peak_memory_bytes=max(before, memory_bytes),
                )
            )
        return max(_FASTEST_S, (time.thread_time() - began_s) / _COST_SHARE)

    def _of_the_trial(self, trial: TrialProcesses, session: int) -> dict[int, ProcessStat]:
        """Return the processes of a trial that are alive."""
        below = {pid: stat for pid in descendants(os.getpid()) if (stat := process_stat(pid)) is not None}
        own: dict[int, ProcessStat] = {}
        for pid, stat in below.items():
            if (
                stat.parent in own
                or pid == trial.pid
                or (pid, stat.started_s) in self._cpu_s  # its parent has ended since
                or (stat.session == session and session in below)  # else it is our own terminal's
                or _carries(pid, trial.trial_id)
            ):
                own[pid] = stat
        return own


def _carries(pid: int, trial_id: str) -> bool:
    """Return True if a process was started as one of that trial."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"AUTOTUNE_TRIAL_ID={trial_id}".encode() in file.read().split(b"\0")
    except OSError:
        return False


_is_a_probe: type[Probe[TrialProcesses, HostUsage]] = HostProbe
