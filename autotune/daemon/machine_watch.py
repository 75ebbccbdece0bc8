"""Watch of the machine: readings of its CPUs and GPUs without our own processes, and who came or left by these."""

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

# What others use is looked into above these, well below where they are somebody: then new processes of ours are looked
# for, and those of others are named. Both cost milliseconds, and are not done on a quiet machine.
_CURIOUS_FRACTION = 0.05
_SHORTEST_S = 0.02  # ticks of the kernel are 10 ms


class MachineWatch:
    """Watch of the machine. Ours are this process, all below it, and searches that are named to `read`.

    It reads when it is asked to, at most twice a second from the driver; a driver that hangs costs a quarter of a
    second once. To be closed.

    Args:
        gpus: Watch of the GPUs; None makes one.
        attribution: Tells the processes on GPUs apart; None makes one.
        cpu: Reader of the CPU time; None makes one.
        tree: Our processes; None takes this one, with all below it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        gpus: OccupancyWatch | None = None,
        attribution: GpuAttribution | None = None,
        cpu: BusyCpu | None = None,
        tree: ProcessTree | None = None,
    ) -> None:
        self._clock = clock
        self._gpus = gpus or OccupancyWatch(clock)
        self._attribution = attribution or GpuAttribution()
        self._cpu = cpu or BusyCpu()
        self._tree = tree or ProcessTree((os.getpid(),))
        self._before: CpuSample | None = None
        self._last_s: float | None = None
        self._last_load: tuple[float | None, BusyProcess | None] = (None, None)
        self._scan: tuple[float, Mapping[int, ProcessStat]] | None = None

    def read(self, own_root_pid: int | None = None) -> MachineReading:
        """Return the state of the machine now; the load is that since the last call.

        Args:
            own_root_pid: A search of ours that is not below this process, such as one of a daemon that has died.
        """
        if own_root_pid is not None:
            self._tree.add_roots((own_root_pid,))
        load, busiest, why_no_load = self._load()
        # process lists and memory take a lock of the whole driver
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
        """End the session with the driver."""
        self._gpus.close()

    def _load(self) -> tuple[float | None, BusyProcess | None, str | None]:
        """Return the cores that others use, the process that uses most of them, and why nothing is known."""
        before = self._before
        now = self._sample(self._tree.known())
        if now is None:
            self._before, self._last_load = None, (None, None)
            return None, None, "the kernel does not tell the load of the CPU"
        if before is None:
            self._before = self._sample(self._tree.look())
            return None, None, None
        if now.t_s - before.t_s < _SHORTEST_S:
            return *self._last_load, None
        load = foreign_cores(before, now)
        curious_cores = max(0.1, _CURIOUS_FRACTION * self._cpu.cores)
        busiest = None
        if load >= curious_cores:
            # The load is often that of new processes of ours.
            now = self._sample(self._tree.look()) or now
            load = foreign_cores(before, now)
        if load >= curious_cores and self._cpu.is_whole_machine:
            others = self._others(now)
            if others is not None:
                load, busiest = max(0.0, load - others.kernel_cores), others.busiest
        self._before, self._last_load = now, (load, busiest)
        return load, busiest, None

    def _sample(self, own: Mapping[int, ProcessStat]) -> CpuSample | None:
        busy_s = self._cpu.busy_s()
        return None if busy_s is None else CpuSample(t_s=self._clock.now_s(), busy_s=busy_s, own=own)

    def _others(self, now: CpuSample) -> ForeignProcesses | None:
        """Look at all processes; return what others did since the last such look, None if that is too long ago."""
        last, found = self._scan, all_processes()
        self._scan = (now.t_s, found)
        # an earlier look at all processes says nothing of now
        if last is None or not _SHORTEST_S < now.t_s - last[0] <= 15.0:
            return None
        return foreign_processes(last[1], found, now.own.keys(), span_s=now.t_s - last[0])


_CUDA_DEVICE = "/dev/nvidia-uvm"  # CUDA opens it, and what only reads the driver does not
_EXPLAINED_BYTES = 64 << 20


def sees_all_pids() -> bool:
    """Return True outside of containers: the driver's process ids are those of /proc then."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel's proc_ns.h
    except OSError:
        return False


class GpuAttribution:
    """Tells apart who holds the GPUs, over successive looks.

    In a container the driver's process ids are those of the host, or it shows no process at all. Then processes that
    are not known count as ours as far as processes of ours use CUDA and are not listed.

    Args:
        shares_pids: Whether the driver's process ids are those of /proc; None finds out.
        cuda_device: Path with which the name of a file begins that a process has open if, and only if, it uses CUDA.
    """

    def __init__(self, *, shares_pids: bool | None = None, cuda_device: str = _CUDA_DEVICE) -> None:
        self._shares_pids = sees_all_pids() if shares_pids is None else shares_pids
        self._cuda_device = cuda_device
        self._own: dict[int, float] = {}  # our processes, with the time at which they were last there
        self._unknown: frozenset[int] = frozenset()  # processes of the last look that are nowhere in /proc
        self._seen: GpusSeen | None = None
        self._readings: tuple[GpuReading, ...] = ()

    def of(self, seen: GpusSeen, tree: ProcessTree) -> tuple[GpuReading, ...]:
        """Return the readings of the GPUs.

        Args:
            seen: The newest look at the GPUs. One that was given before has the same answer: since then processes of
                ours may have ended.
        """
        if seen is self._seen:
            return self._readings
        self._seen = seen
        listed = {occupant.pid for gpu in seen.gpus for occupant in gpu.occupants}
        own = tree.known()
        may_be_hidden = not self._shares_pids or not all(map(_is_explained, seen.gpus))
        if may_be_hidden or not listed <= own.keys():
            own = tree.look()  # after the driver's list: it cannot hold one of ours that is not found here
        self._own |= dict.fromkeys(own, seen.t_s)
        # for a process of ours that has ended between two questions
        self._own = {pid: t_s for pid, t_s in self._own.items() if seen.t_s - t_s <= 5.0}
        hidden = self._hidden_own(own, listed) if may_be_hidden else 0
        strangers = listed - self._own.keys()
        nowhere = frozenset(pid for pid in strangers if self._is_nowhere(pid))
        # One that is gone by now may have been ours, too short-lived to be seen.
        passing = (nowhere - self._unknown) if self._shares_pids else frozenset()
        self._unknown = nowhere
        self._readings = tuple(_reading(gpu, seen.t_s, self._own, passing, hidden) for gpu in seen.gpus)
        return self._readings

    def _hidden_own(self, own: Collection[int], listed: Collection[int]) -> int:
        others = [pid for pid in own if pid not in listed and pid != os.getpid()]
        return len(holders_of(others, self._cuda_device))

    def _is_nowhere(self, pid: int) -> bool:
        stat = process_stat(pid)
        return stat is None or stat.is_dead


def _is_explained(gpu: GpuOccupancy) -> bool:
    unlisted_bytes = _unlisted_bytes(gpu)
    return unlisted_bytes is not None and unlisted_bytes < _EXPLAINED_BYTES


def _unlisted_bytes(gpu: GpuOccupancy) -> int | None:
    if gpu.memory_held_bytes is None:
        return None
    listed = [occupant.memory_bytes for occupant in gpu.occupants]
    known = [held for held in listed if held is not None]
    return gpu.memory_held_bytes - sum(known) if len(known) == len(listed) else None


def _reading(gpu: GpuOccupancy, t_s: float, own: Collection[int], passing: Collection[int], hidden: int) -> GpuReading:
    if gpu.why_unknown is not None:
        return GpuReading(t_s=t_s, index=gpu.index, uuid=gpu.uuid, why_unknown=gpu.why_unknown)
    others = [one for one in gpu.occupants if one.pid not in own and one.pid not in passing]
    computing = [one for one in others if one.computes]
    return GpuReading(
        t_s=t_s,
        index=gpu.index,
        uuid=gpu.uuid,
        neighbours=tuple(computing[hidden:]),
        drawing=tuple(one for one in others if not one.computes),
        has_own=hidden > 0 or any(one.pid in own for one in gpu.occupants),
        unlisted_bytes=None if hidden else _unlisted_bytes(gpu),
        utilization=gpu.utilization,
        memory_fraction=gpu.memory_fraction,
        throttled_by=None
        if gpu.clock_reasons is None
        else tuple(reason for reason in reasons_of(gpu.clock_reasons) if reason in THROTTLING),
    )


# The machine as the queue looks at it.


_NOT_LOOKED = IdleState(is_idle=False, idle_since_s=None, reason="not looked at yet", look_again_s=0.0)


class MachineLook:
    """Look at the machine for the queue: at the CPUs, and at each GPU by itself, as entries use different ones."""

    def __init__(self, policy: IdlePolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = MachineWatch(clock)
        self.close = self._watch.close
        self._idleness: dict[str | None, Idleness] = {None: Idleness(policy, uuids=())}  # by GPU; None without any
        self._states: dict[str | None, IdleState] = {}
        self._arrivals: Arrivals | None = None
        self._searched: tuple[str | None, ...] = ()  # what the running search uses
        self._has_somebody_come = False  # since it was started
        self._due_s = -math.inf

    @property
    def reason(self) -> str:
        """State of the whole machine, in words."""
        states = list(self._states.values()) or [_NOT_LOOKED]
        return next((state for state in states if state.idle_since_s is None), states[0]).reason

    def why_not_idle(self, entry: QueueEntry) -> str | None:
        """Return why the machine is not idle for an entry; None if it is: the CPUs, and the GPUs that it uses."""
        return next((state.reason for state in self._states_of(entry) if not state.is_idle), None)

    def due_in_s(self) -> float:
        """Return the time until the next reading; never below 0."""
        return max(0.0, self._due_s - self._clock.now_s())

    def search_starts(self, entry: QueueEntry) -> None:
        """Watch for arrivals from now on: on its GPUs; on the CPUs too where it needs an idle machine."""
        policy = self._policy if entry.start.needs_idle else replace(self._policy, cpu_fraction=math.inf)
        self._arrivals, self._searched = Arrivals(policy, uuids=entry.gpus), (None, *entry.gpus)
        self._due_s = -math.inf

    def search_ended(self) -> None:
        """Watch for an idle machine again; what the search used has been idle all the time, unless somebody came."""
        searched = () if self._has_somebody_come else self._searched
        known = {key: self._states[key] for key in searched if key in self._states}
        for key in self._idleness:
            since_s = known[key].idle_since_s if key in known else None
            self._idleness[key] = Idleness(self._policy, uuids=_uuids(key), idle_since_s=since_s)
        self._arrivals, self._searched, self._has_somebody_come = None, (), False
        self._due_s = -math.inf

    def look(self, waiting: Collection[QueueEntry], *, orphan_pid: int | None) -> str | None:
        """Take a reading if one is due.

        Args:
            waiting: Entries, some of which wait for nothing but an idle machine; empty if none does.
            orphan_pid: A search of ours that is not below this process; None if there is none.

        Returns:
            The reason for which the search that runs has to leave; None if it has not.
        """
        if 0.0 < self.due_in_s() <= self._look_again_s(waiting):
            return None
        reading = self._watch.read(orphan_pid)
        if self._arrivals is not None:
            self._due_s = self._clock.now_s() + self._policy.close_look_s
            why = self._arrivals.update(reading)
            self._has_somebody_come |= why is not None
            return why
        for gpu in reading.gpus:
            self._idleness.setdefault(gpu.uuid, Idleness(self._policy, uuids=_uuids(gpu.uuid)))
        self._states = {key: idleness.update(reading) for key, idleness in self._idleness.items()}
        self._due_s = self._clock.now_s() + min(self._look_again_s(waiting), self._policy.look_s)
        return None

    def _look_again_s(self, waiting: Collection[QueueEntry]) -> float:
        return min((state.look_again_s for one in waiting for state in self._states_of(one)), default=math.inf)

    def _states_of(self, entry: QueueEntry) -> list[IdleState]:
        absent = replace(_NOT_LOOKED, look_again_s=math.inf)
        return [
            self._states.get(key)
            or (replace(absent, reason=f"{key} is not among the GPUs of this machine") if self._states else _NOT_LOOKED)
            for key in entry.gpus or (None,)
        ]


def _uuids(key: str | None) -> tuple[str, ...]:
    return () if key is None else (key,)
