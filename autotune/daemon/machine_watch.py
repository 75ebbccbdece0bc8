"""Machine readings: CPU and GPU use by other processes, and the idle state."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from autotune.clock import Clock
from autotune.daemon.idleness import Arrivals, GpuReading, Idleness, IdlePolicy, IdleState, MachineReading
from autotune.daemon.queue import QueueEntry
from autotune.measure.gpu.driver import THROTTLING, reasons_of
from autotune.measure.gpu.occupancy import GpuOccupancy, GpusSeen, OccupancyWatch
from autotune.measure.host import (
    BusyCpu,
    BusyProcess,
    CpuSample,
    ForeignProcesses,
    ProcessStat,
    ProcessTree,
    all_processes,
    asleep_s,
    foreign_cores,
    foreign_processes,
    holders_of,
    process_stat,
)

# Load of other processes above which all processes are scanned: to exclude new processes of ours, and to name the
# busiest one. Well below the limits of `IdlePolicy`; a scan takes milliseconds, so a quiet machine is not scanned.
_SCAN_FRACTION = 0.05
_SHORTEST_S = 0.02  # kernel ticks are 10 ms


class MachineWatch:
    """Reader of the machine's state; `close` it when done.

    Queries the driver at most twice per second; a hanging driver blocks once for 0.25 s.

    Args:
        tree: Own processes; None for this process and its descendants.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        gpus: OccupancyWatch | None = None,
        cpu: BusyCpu | None = None,
        tree: ProcessTree | None = None,
    ) -> None:
        self._clock = clock
        self._gpus = gpus or OccupancyWatch(clock)
        self._attribution = GpuAttribution()
        self._cpu = cpu or BusyCpu()
        self._tree = tree or ProcessTree((os.getpid(),))
        self._before: CpuSample | None = None
        self._last_s: float | None = None
        self._last_load: tuple[float | None, BusyProcess | None] = (None, None)
        self._scan: tuple[float, Mapping[int, ProcessStat]] | None = None

    def read(self, own_root_pid: int | None = None) -> MachineReading:
        """Return the current state, with the mean load since the last call.

        Args:
            own_root_pid: Own search that isn't a descendant of this process.
        """
        if own_root_pid is not None:
            self._tree.add_roots((own_root_pid,))
        load, busiest, why_no_load = self._load()
        # process lists and memory queries lock the whole driver
        seen = self._gpus.look(newest_s=self._clock.now_s() - 0.5)
        gpus = self._attribution.of(seen, self._tree)
        now_s = self._clock.now_s()
        span_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        return MachineReading(
            t_s=now_s,
            span_s=span_s,
            cores=self._cpu.cores,
            foreign_cores=load,
            busiest=busiest,
            gpus=gpus,
            why_no_load=why_no_load,
            why_no_gpus=seen.why_unknown,
            asleep_s=asleep_s(),
        )

    def close(self) -> None:
        self._gpus.close()

    def _load(self) -> tuple[float | None, BusyProcess | None, str | None]:
        before = self._before
        now = self._sample(self._tree.known())
        if now is None:
            self._before, self._last_load = None, (None, None)
            return None, None, "the kernel does not report the CPU load"
        if before is None:
            self._before = self._sample(self._tree.look())
            return None, None, None
        if now.t_s - before.t_s < _SHORTEST_S:
            return *self._last_load, None
        load = foreign_cores(before, now)
        scan_cores = max(0.1, _SCAN_FRACTION * self._cpu.cores)
        busiest = None
        if load >= scan_cores:
            # The load is often that of new processes of ours.
            now = self._sample(self._tree.look()) or now
            load = foreign_cores(before, now)
        if load >= scan_cores and self._cpu.is_whole_machine:
            others = self._others(now)
            if others is not None:
                load, busiest = max(0.0, load - others.kernel_cores), others.busiest
        self._before, self._last_load = now, (load, busiest)
        return load, busiest, None

    def _sample(self, own: Mapping[int, ProcessStat]) -> CpuSample | None:
        busy_s = self._cpu.busy_s()
        return None if busy_s is None else CpuSample(t_s=self._clock.now_s(), busy_s=busy_s, own=own)

    def _others(self, now: CpuSample) -> ForeignProcesses | None:
        """Return the use by others since the last scan, if that is recent."""
        last, found = self._scan, all_processes()
        self._scan = (now.t_s, found)
        if last is None or not _SHORTEST_S < now.t_s - last[0] <= 15.0:
            return None
        return foreign_processes(last[1], found, now.own.keys(), span_s=now.t_s - last[0])


_CUDA_DEVICE = "/dev/nvidia-uvm"  # opened by CUDA, but not by programs that only query the driver
_EXPLAINED_BYTES = 64 << 20


def sees_all_pids() -> bool:
    """Return whether the driver's process ids are those of /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC  # PROC_PID_INIT_INO in Linux's proc_ns.h
    except OSError:
        return False


class GpuAttribution:
    """Attribution of GPU processes to us or others, over successive readings.

    In a container, the driver lists host process ids or no processes: if n own processes use CUDA without being listed,
    n unknown processes count as own.

    Args:
        shares_pids: As `sees_all_pids`; None to detect.
        cuda_device: Path prefix of a file that is open in exactly the processes that use CUDA.
    """

    def __init__(self, *, shares_pids: bool | None = None, cuda_device: str = _CUDA_DEVICE) -> None:
        self._shares_pids = sees_all_pids() if shares_pids is None else shares_pids
        self._cuda_device = cuda_device
        self._own: dict[int, float] = {}  # own processes, with the time at which each was last seen
        self._unknown: frozenset[int] = frozenset()  # processes of the last reading that are not in /proc
        self._seen: GpusSeen | None = None
        self._readings: tuple[GpuReading, ...] = ()

    def of(self, seen: GpusSeen, tree: ProcessTree) -> tuple[GpuReading, ...]:
        """Return the readings; the same for the same `seen`, because own processes may have ended since."""
        if seen is self._seen:
            return self._readings
        self._seen = seen
        listed = {occupant.pid for gpu in seen.gpus for occupant in gpu.occupants}
        own = tree.known()
        may_be_hidden = not self._shares_pids or not all(map(_is_explained, seen.gpus))
        if may_be_hidden or not listed <= own.keys():
            own = tree.look()  # after the driver's list, so that it includes every own process listed there
        self._own |= dict.fromkeys(own, seen.t_s)
        # kept for 5 s, for own processes that ended between the two queries
        self._own = {pid: t_s for pid, t_s in self._own.items() if seen.t_s - t_s <= 5.0}
        hidden = 0
        if may_be_hidden:
            others = [pid for pid in own if pid not in listed and pid != os.getpid()]
            hidden = len(holders_of(others, self._cuda_device))
        foreign = listed - self._own.keys()
        absent = frozenset(pid for pid in foreign if (stat := process_stat(pid)) is None or stat.is_dead)
        # A process that has ended meanwhile may have been a short-lived own one.
        ended = (absent - self._unknown) if self._shares_pids else frozenset()
        self._unknown = absent
        self._readings = tuple(_reading(gpu, seen.t_s, self._own, ended, hidden) for gpu in seen.gpus)
        return self._readings


def _is_explained(gpu: GpuOccupancy) -> bool:
    unlisted_bytes = _unlisted_bytes(gpu)
    return unlisted_bytes is not None and unlisted_bytes < _EXPLAINED_BYTES


def _unlisted_bytes(gpu: GpuOccupancy) -> int | None:
    if gpu.memory_held_bytes is None:
        return None
    listed = [occupant.memory_bytes for occupant in gpu.occupants]
    known = [held for held in listed if held is not None]
    return gpu.memory_held_bytes - sum(known) if len(known) == len(listed) else None


def _reading(gpu: GpuOccupancy, t_s: float, own: Collection[int], ended: Collection[int], hidden: int) -> GpuReading:
    if gpu.why_unknown is not None:
        return GpuReading(t_s=t_s, index=gpu.index, uuid=gpu.uuid, why_unknown=gpu.why_unknown)
    others = [one for one in gpu.occupants if one.pid not in own and one.pid not in ended]
    computing = [one for one in others if one.computes]
    return GpuReading(
        t_s=t_s,
        index=gpu.index,
        uuid=gpu.uuid,
        foreign=tuple(computing[hidden:]),
        drawing=tuple(one for one in others if not one.computes),
        has_own=hidden > 0 or any(one.pid in own for one in gpu.occupants),
        unlisted_bytes=None if hidden else _unlisted_bytes(gpu),
        utilization=gpu.utilization,
        memory_fraction=gpu.memory_fraction,
        throttled_by=None
        if gpu.clock_reasons is None
        else tuple(reason for reason in reasons_of(gpu.clock_reasons) if reason in THROTTLING),
    )


# Idle state for the queue.


_NOT_READ = IdleState(is_idle=False, idle_since_s=None, reason="not measured yet", next_reading_s=0.0)


class IdleMonitor:
    """Idle state of the CPUs and of each GPU, because entries use different ones."""

    def __init__(self, policy: IdlePolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = MachineWatch(clock)
        self.close = self._watch.close
        self._idleness: dict[str | None, Idleness] = {None: Idleness(policy, uuids=())}  # by GPU; None without any
        self._states: dict[str | None, IdleState] = {}
        self._arrivals: Arrivals | None = None
        self._searched: tuple[str | None, ...] = ()  # keys that the running search uses
        self._was_preempted = False  # since it was started
        self._due_s = -math.inf

    @property
    def reason(self) -> str:
        """State of the whole machine."""
        states = list(self._states.values()) or [_NOT_READ]
        return next((state for state in states if state.idle_since_s is None), states[0]).reason

    def why_not_idle(self, entry: QueueEntry) -> str | None:
        """Return why the CPUs or the entry's GPUs aren't idle, if so."""
        return next((state.reason for state in self._states_of(entry) if not state.is_idle), None)

    def due_in_s(self) -> float:
        return max(0.0, self._due_s - self._clock.now_s())

    def search_starts(self, entry: QueueEntry) -> None:
        """Watch the entry's GPUs for others, and the CPUs if it needs an idle machine."""
        policy = self._policy if entry.start.needs_idle else replace(self._policy, cpu_fraction=math.inf)
        self._arrivals, self._searched = Arrivals(policy, uuids=entry.gpus), (None, *entry.gpus)
        self._due_s = -math.inf

    def search_ended(self) -> None:
        """Watch for an idle machine again; unless preempted, the search counts as idle time."""
        searched = () if self._was_preempted else self._searched
        known = {key: self._states[key] for key in searched if key in self._states}
        for key in self._idleness:
            since_s = known[key].idle_since_s if key in known else None
            self._idleness[key] = Idleness(self._policy, uuids=_uuids(key), idle_since_s=since_s)
        self._arrivals, self._searched, self._was_preempted = None, (), False
        self._due_s = -math.inf

    def poll(self, waiting: Collection[QueueEntry], *, orphan_pid: int | None) -> str | None:
        """Take a reading if one is due; return why the running search has to stop, if so.

        Args:
            waiting: Entries, if one waits only for an idle machine.
            orphan_pid: As in `MachineWatch.read`.
        """
        if 0.0 < self.due_in_s() <= self._next_reading_s(waiting):
            return None
        reading = self._watch.read(orphan_pid)
        if self._arrivals is not None:
            self._due_s = self._clock.now_s() + self._policy.close_interval_s
            why = self._arrivals.update(reading)
            self._was_preempted |= why is not None
            return why
        for gpu in reading.gpus:
            self._idleness.setdefault(gpu.uuid, Idleness(self._policy, uuids=_uuids(gpu.uuid)))
        self._states = {key: idleness.update(reading) for key, idleness in self._idleness.items()}
        self._due_s = self._clock.now_s() + min(self._next_reading_s(waiting), self._policy.interval_s)
        return None

    def _next_reading_s(self, waiting: Collection[QueueEntry]) -> float:
        return min((state.next_reading_s for one in waiting for state in self._states_of(one)), default=math.inf)

    def _states_of(self, entry: QueueEntry) -> list[IdleState]:
        absent = replace(_NOT_READ, next_reading_s=math.inf)
        return [
            self._states.get(key)
            or (replace(absent, reason=f"{key} is not among the GPUs of this machine") if self._states else _NOT_READ)
            for key in entry.gpus or (None,)
        ]


def _uuids(key: str | None) -> tuple[str, ...]:
    return () if key is None else (key,)
