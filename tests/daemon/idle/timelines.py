"""Timelines of a machine, made from seeds, and a daemon that is played on them in virtual time.

A timeline is who comes and goes, and so when the machine is truly idle. The played daemon searches whenever the machine
is idle: it starts at the first moment that it may, and leaves when somebody comes. All that decides is the product's
own; what the driver and the host say is made up.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from autotune.clock import VirtualClock
from autotune.daemon.idleness import Arrivals, Idleness, IdlePolicy, MachineReading
from autotune.daemon.machine_watch import GpuAttribution, MachineWatch
from autotune.measure.gpu.occupancy import GpuOccupancy, GpusSeen, OccupancyWatch, Occupant
from autotune.measure.host import BusyCpu
from autotune.measure.processes import ProcessStat, ProcessTree

LENGTH_S = 3_600.0
ORIGIN_S = 1_000.0
_SHORTEST_S = 15.0  # who comes and goes between two looks is not seen
_NOWHERE = 4_000_000
_BUDGET_S = 100.0
_TRIAL_S = 3.0
# As measured on real searches: trainers that listen to SIGTERM, two that do not, and a search that had to be killed.
_STOPS_S = (0.15, 0.15, 0.2, 0.2, 0.7, 0.9, 1.6)
_NO_NOTICE_S = 1.5  # who came that shortly before a start is met by the search
_GIB = 1 << 30


class Kind(Enum):
    """Kind of a visit."""

    COMPUTES = "process on a GPU"
    HIDDEN_MEMORY = "memory of a GPU, no process listed"
    HIDDEN_KERNELS = "kernels on a GPU, no process listed"
    CPU = "load of the CPU"
    GPU_LOST = "GPU lost"
    DRIVER_LOST = "driver lost or silent"
    SUSPENDED = "machine suspended"


_SOMEBODY = (Kind.COMPUTES, Kind.HIDDEN_MEMORY, Kind.CPU)  # a search has to leave at once


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Something because of which the machine is not idle.

    Attributes:
        from_s: Since when, in seconds since the timeline's origin.
        until_s: Until when.
        gpu: On which GPU.
        cores: Load of the CPU that comes with it.
        pid: Its process, for the driver.
    """

    kind: Kind
    from_s: float
    until_s: float
    gpu: int
    cores: float
    pid: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Timeline of a machine.

    Attributes:
        cores: Its cores.
        gpus: Number of its GPUs; 0 for no driver.
        noise_cores: Load that is always there.
        blip_every_s: Time between two jobs of cron, which use a core for `blip_s`.
        visits: In the order of time.
    """

    seed: int
    cores: int
    gpus: int
    noise_cores: float
    blip_every_s: float
    blip_s: float
    visits: tuple[Visit, ...]

    def there(self, t_s: float, kind: Kind, gpu: int | None = None) -> Iterator[Visit]:
        """Yield the visits of a kind at a time, on a GPU."""
        for visit in self.visits:
            if visit.kind is kind and visit.from_s <= t_s < visit.until_s and gpu in (None, visit.gpu):
                yield visit

    def last_disturbed_s(self, t_s: float, searches: Sequence[tuple[float, float]]) -> float:
        """Return the last time, up to then, at which the machine was not idle; its origin if there is none.

        Args:
            t_s: That time.
            searches: Starts and ends of searches of ours: kernels of nobody cannot be told from theirs.
        """
        last_s = 0.0
        for visit in self.visits:
            end_s = min(visit.until_s, t_s)
            if visit.kind is Kind.HIDDEN_KERNELS:
                for began_s, ended_s in reversed(searches):
                    if began_s < end_s <= ended_s + 2.0:
                        end_s = began_s
            if visit.from_s < end_s:
                last_s = max(last_s, end_s)
        return last_s

    def foreign_cpu_s(self, t_s: float) -> float:
        """Return the CPU time that others have used up to then."""
        used_s = self.noise_cores * t_s
        used_s += sum(visit.cores * max(0.0, min(t_s, visit.until_s) - visit.from_s) for visit in self.visits)
        whole, rest_s = divmod(t_s, self.blip_every_s)
        return used_s + whole * self.blip_s + min(rest_s, self.blip_s)

    def kernels_s(self, t_s: float, gpu: int) -> float:
        """Return for how much of the last second there were hidden kernels."""
        hidden = [visit for visit in self.visits if visit.kind is Kind.HIDDEN_KERNELS and visit.gpu == gpu]
        return sum(max(0.0, min(t_s, one.until_s) - max(t_s - 1.0, one.from_s)) for one in hidden)


def machine_of(seed: int) -> Machine:
    """Make the machine of a seed."""
    rng = random.Random(f"idle {seed}")
    cores, gpus = rng.choice((2, 4, 16, 64)), rng.choice((0, 1, 1, 1, 2, 2, 4, 8))
    visits, t_s = list[Visit](), rng.uniform(0.0, 200.0)
    while t_s < LENGTH_S:
        kind = rng.choice([*Kind] if gpus else [Kind.CPU, Kind.SUSPENDED])
        length_s = 0.01 if kind is Kind.SUSPENDED else rng.uniform(_SHORTEST_S, 250.0)
        load = {Kind.CPU: rng.uniform(max(0.15 * cores, 0.4), cores), Kind.COMPUTES: rng.uniform(0.0, 1.0)}
        visit = Visit(
            kind=kind,
            from_s=t_s,
            until_s=t_s + length_s,
            gpu=rng.randrange(max(gpus, 1)),
            cores=load.get(kind, 0.0),
            pid=rng.choice((1, _NOWHERE + rng.randrange(1000))),
        )
        visits.append(visit)
        # Some come while another one is there; after most the machine is idle for long enough to start.
        t_s += rng.uniform(5.0, length_s) if rng.random() < 0.15 else length_s + rng.uniform(500.0, 1_000.0)
    return Machine(
        seed=seed,
        cores=cores,
        gpus=gpus,
        noise_cores=rng.uniform(0.0, 0.04) * cores,
        blip_every_s=rng.choice((1e9, 61.0, 13.0)),
        blip_s=rng.uniform(0.1, 0.6),
        visits=tuple(visits),
    )


class PlayedHost(BusyCpu):
    """CPU time of the made-up host."""

    def __init__(self, machine: Machine, clock: VirtualClock) -> None:
        self.cores, self.is_whole_machine = float(machine.cores), False
        self._machine, self._clock = machine, clock
        self.own_s, self.own_cores, self.since_s = 0.0, 0.0, 0.0

    def search(self, cores: float) -> None:
        """Let the search use so many cores from now on; 0 for no search."""
        self.own_s, self.own_cores, self.since_s = self.used_s(), cores, self._clock.now_s()

    def used_s(self) -> float:
        """Return the CPU time of our own processes up to now."""
        return self.own_s + self.own_cores * (self._clock.now_s() - self.since_s)

    def busy_s(self) -> float:
        """See `BusyCpu.busy_s`."""
        return self._machine.foreign_cpu_s(self._clock.now_s() - ORIGIN_S) + self.used_s()


class PlayedTree(ProcessTree):
    """Tree of the played daemon: itself with all trials that have ended, and the running one."""

    def __init__(self, host: PlayedHost, clock: VirtualClock) -> None:
        super().__init__(())
        self._host, self._clock = host, clock

    def known(self) -> dict[int, ProcessStat]:
        """See `ProcessTree.known`; a trial that is new is not known."""
        return {pid: stat for pid, stat in self.look().items() if stat.started_s < self._clock.now_s() - 1.0}

    def look(self) -> dict[int, ProcessStat]:
        """See `ProcessTree.look`."""
        now_s = self._clock.now_s()
        began_s = now_s - now_s % _TRIAL_S
        own_s = self._host.own_cores * min(now_s - began_s, now_s - self._host.since_s)
        daemon = _stat(0.0, waited_cpu_s=self._host.used_s() - own_s)
        return {os.getpid(): daemon, 3_000_000: _stat(began_s, cpu_s=own_s)} if own_s else {os.getpid(): daemon}


def _stat(started_s: float, *, cpu_s: float = 0.0, waited_cpu_s: float = 0.0) -> ProcessStat:
    never = {"resident_bytes": 0, "is_dead": False, "is_kernel_thread": False}
    ours = {"name": "python", "parent": 1, "session": 1, "cpu_s": cpu_s, "waited_cpu_s": waited_cpu_s}
    return ProcessStat(started_s=started_s, **ours, **never)


class PlayedGpus(OccupancyWatch):
    """Watch of the made-up driver, which is read at most twice a second.

    Attributes:
        own: GPU that the search uses; None while there is none.
    """

    def __init__(self, machine: Machine, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._machine, self._now = machine, clock.now_s
        self._last = GpusSeen(t_s=0.0)
        self.own: int | None = None

    def look(self, *, newest_s: float) -> GpusSeen:
        """See `OccupancyWatch.look`."""
        if self._last.t_s < newest_s:
            self._last = self._seen_now(self._now() - ORIGIN_S)
        return self._last

    def _seen_now(self, t_s: float) -> GpusSeen:
        if not self._machine.gpus:
            return GpusSeen(t_s=self._now(), why_none="no NVIDIA driver was found")
        if any(self._machine.there(t_s, Kind.DRIVER_LOST)):
            return GpusSeen(t_s=self._now(), why_unknown="the NVIDIA driver has not answered for 0.3 s")
        return GpusSeen(t_s=self._now(), gpus=tuple(self._gpu(t_s, gpu) for gpu in range(self._machine.gpus)))

    def _gpu(self, t_s: float, gpu: int) -> GpuOccupancy:
        there, machine = self._machine.there, self._machine
        pids = [(visit.pid, True) for visit in there(t_s, Kind.COMPUTES, gpu)]
        pids += [(_NOWHERE + 5_000, False)] * (gpu == 0 and machine.seed % 3 == 0)  # a desktop
        pids += [(os.getpid(), True)] * (self.own == gpu)
        return GpuOccupancy(
            uuid=f"GPU-{gpu}",
            name="H100",
            index=gpu,
            occupants=tuple(
                Occupant(pid=pid, memory_bytes=_GIB, name="x", computes=computes) for pid, computes in pids
            ),
            utilization=1.0 if self.own == gpu else min(1.0, machine.kernels_s(t_s, gpu)),
            memory_held_bytes=(len(pids) + 3 * any(there(t_s, Kind.HIDDEN_MEMORY, gpu))) * _GIB,
            why_unknown="GPU lost" if any(there(t_s, Kind.GPU_LOST, gpu)) else None,
        )


@dataclass(kw_only=True)
class Played:
    """Outcome of a timeline.

    Attributes:
        starts: Number of searches that were started.
        wrong: Starts that should not have been: the time, and that at which somebody was last there.
        missed_s: Time in which the machine was idle, and no search was started.
        noticed_s: Times between an arrival while a search ran, and its leaving.
        left_for_nobody: Reasons for which a search left while nobody was there.
    """

    starts: int = 0
    wrong: list[tuple[float, float]] = field(default_factory=list)
    missed_s: float = 0.0
    noticed_s: list[float] = field(default_factory=list)
    left_for_nobody: list[tuple[float, str]] = field(default_factory=list)


class Play:
    """Played daemon on a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._policy, self._clock = machine, IdlePolicy(), VirtualClock(ORIGIN_S)
        self._host, self._gpus = PlayedHost(machine, self._clock), PlayedGpus(machine, self._clock)
        self._rng = random.Random(f"play {machine.seed}")
        tree, attribution = PlayedTree(self._host, self._clock), GpuAttribution(shares_pids=True)
        self._watch = MachineWatch(self._clock, gpus=self._gpus, attribution=attribution, cpu=self._host, tree=tree)
        self._played, self._searches = Played(), list[tuple[float, float]]()

    def run(self) -> Played:
        """Play it to its end."""
        idleness, since_s = Idleness(self._policy), 0.0
        while self._now_s < LENGTH_S:
            state = idleness.update(self._read())
            if state.is_idle:
                self._start(since_s)
                is_ours = self._search()
                idleness = Idleness(self._policy, idle_since_s=state.idle_since_s if is_ours else None)
                since_s = self._now_s
            else:
                self._clock.wait(state.look_again_s * self._rng.uniform(1.0, 1.1))
        return self._played

    @property
    def _now_s(self) -> float:
        return self._clock.now_s() - ORIGIN_S

    def _read(self) -> MachineReading:
        suspended = [one for one in self._machine.visits if one.kind is Kind.SUSPENDED and one.from_s <= self._now_s]
        return replace(self._watch.read(), asleep_s=3600.0 * len(suspended))

    def _start(self, since_s: float) -> None:
        """Note a start, and whether it was right and in time."""
        now_s, disturbed_s = self._now_s, self._machine.last_disturbed_s(self._now_s, self._searches)
        just_came = any(now_s - _NO_NOTICE_S <= visit.from_s <= now_s for visit in self._machine.visits)
        if now_s - disturbed_s < self._policy.idle_s and not just_came:
            self._played.wrong.append((now_s, disturbed_s))
        self._played.starts += 1
        self._played.missed_s += max(0.0, now_s - max(disturbed_s + self._policy.idle_s, since_s))

    def _search(self) -> bool:
        """Search until somebody comes, or the budget is used up; return False if somebody came."""
        self._gpus.own = self._rng.randrange(self._machine.gpus) if self._machine.gpus else None
        self._host.search(self._rng.uniform(0.2, self._machine.cores))
        arrivals, began_s, reason = Arrivals(self._policy), self._now_s, None
        while reason is None and self._now_s < began_s + _BUDGET_S:
            reason = arrivals.update(self._read())
            self._clock.wait(0.0 if reason else self._policy.close_look_s * self._rng.uniform(1.0, 1.2))
        noticed_s = self._now_s
        self._clock.wait(self._rng.choice(_STOPS_S) if reason else 0.1)
        self._host.search(0.0)
        self._gpus.own = None
        self._searches.append((began_s, self._now_s))
        came = [one.from_s for one in self._machine.visits if one.kind in _SOMEBODY and one.from_s <= noticed_s]
        if came and came[-1] >= began_s - _NO_NOTICE_S:
            first_s = min(from_s for from_s in came if from_s >= began_s - _NO_NOTICE_S)
            self._played.noticed_s.append(noticed_s - first_s)
        elif reason and self._machine.last_disturbed_s(noticed_s, ()) < noticed_s - 1.0:
            self._played.left_for_nobody.append((noticed_s, reason))
        return reason is None
