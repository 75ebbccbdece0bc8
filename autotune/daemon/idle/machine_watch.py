"""Watch of the machine: makes readings of its CPUs and GPUs, in which our own processes are told from others."""

import os
from collections.abc import Mapping

from autotune.clock import Clock
from autotune.daemon.idle.gpu_attribution import GpuAttribution
from autotune.daemon.idle.reading import MachineReading
from autotune.gpu.occupancy_watch import OccupancyWatch
from autotune.measure.cpu_load import (
    BusyCpu,
    BusyProcess,
    CpuSample,
    ForeignProcesses,
    foreign_cores,
    foreign_processes,
)
from autotune.measure.host import asleep_s
from autotune.process.process_tree import ProcessStat, ProcessTree, all_processes

_GPU_EVERY_S = 0.5  # process lists and memory take a lock of the whole driver
# What others use is looked into above these, well below where they are somebody: then new processes of ours are looked
# for, and those of others are named. Both cost milliseconds, and are not done on a quiet machine.
_CURIOUS_FRACTION = 0.05
_CURIOUS_CORES = 0.1
_SCANS_APART_S = 15.0  # an earlier look at all processes says nothing of now
_SHORTEST_S = 0.02  # ticks of the kernel are 10 ms


class MachineWatch:
    """Watch of the machine. Ours are this process, all below it, and searches that are named to `read`.

    It reads when it is asked to, at most twice a second from the driver; a driver that hangs costs a quarter of a
    second once. To be closed.

    Args:
        clock: Stamps the readings.
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
        seen = self._gpus.look(newest_s=self._clock.now_s() - _GPU_EVERY_S)
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
        curious_cores = max(_CURIOUS_CORES, _CURIOUS_FRACTION * self._cpu.cores)
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
        if last is None or not _SHORTEST_S < now.t_s - last[0] <= _SCANS_APART_S:
            return None
        return foreign_processes(last[1], found, now.own.keys(), span_s=now.t_s - last[0])
