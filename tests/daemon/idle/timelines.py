"""Timelines of a machine, made from seeds: who comes and goes, and so when it is truly idle."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tests.fake_nvml.scenario import Fault, Gpu, Process, ProcessKind, Scenario, Timeline

LENGTH_S = 3_600.0
_SHORTEST_S = 15.0  # who comes and goes between two looks is not seen
_NOWHERE = 4_000_000


class Kind(Enum):
    """Kind of a visit."""

    COMPUTES = "process on a GPU"
    HOLDS = "context on a GPU, memory and no kernel"
    HIDDEN_MEMORY = "memory of a GPU, no process listed"
    HIDDEN_KERNELS = "kernels on a GPU, no process listed"
    CPU = "load of the CPU"
    GPU_LOST = "GPU lost"
    DRIVER_LOST = "driver lost"
    DRIVER_BLOCKED = "driver does not answer"
    SUSPENDED = "machine suspended"

    @property
    def needs_gpu(self) -> bool:
        """True if it is about a GPU."""
        return self not in (Kind.CPU, Kind.SUSPENDED)

    @property
    def is_somebody(self) -> bool:
        """True if a search has to leave at once."""
        return self in (Kind.COMPUTES, Kind.HOLDS, Kind.HIDDEN_MEMORY, Kind.CPU)


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
    gpu: int = 0
    cores: float = 0.0
    pid: int = 1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Timeline of a machine.

    Attributes:
        cores: Its cores.
        gpus: Number of its GPUs; 0 for no driver.
        noise_cores: Load that is always there.
        blip_every_s: Time between two jobs of cron, which use a core for `blip_s`; None for no such jobs.
        visits: In the order of time.
    """

    seed: int
    cores: int
    gpus: int
    noise_cores: float
    blip_every_s: float | None
    blip_s: float
    visits: tuple[Visit, ...]

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

    def arrival_s(self, after_s: float, until_s: float) -> Visit | None:
        """Return the first somebody who came in a stretch of time."""
        came = [visit for visit in self.visits if visit.kind.is_somebody and after_s <= visit.from_s <= until_s]
        return min(came, key=lambda visit: visit.from_s, default=None)

    def foreign_cpu_s(self, t_s: float) -> float:
        """Return the CPU time that others have used up to then."""
        used_s = self.noise_cores * t_s
        for visit in self.visits:
            used_s += visit.cores * max(0.0, min(t_s, visit.until_s) - visit.from_s)
        if self.blip_every_s is not None:
            whole, rest_s = divmod(t_s, self.blip_every_s)
            used_s += whole * self.blip_s + min(rest_s, self.blip_s)
        return used_s

    def blocked(self, t_s: float) -> bool:
        """Return True while the driver does not answer."""
        return any(v.kind is Kind.DRIVER_BLOCKED and v.from_s <= t_s < v.until_s for v in self.visits)

    def asleep_s(self, t_s: float) -> float:
        """Return the time for which the machine was suspended up to then: an hour each time."""
        return 3600.0 * sum(visit.kind is Kind.SUSPENDED and visit.from_s <= t_s for visit in self.visits)


def machine_of(seed: int) -> Machine:
    """Make the machine of a seed."""
    rng = random.Random(f"idle {seed}")
    cores, gpus = rng.choice((2, 4, 16, 64)), rng.choice((0, 1, 1, 1, 2, 2, 4, 8))
    kinds = [kind for kind in Kind if gpus or not kind.needs_gpu]
    visits = []
    t_s = rng.uniform(0.0, 200.0)
    while t_s < LENGTH_S:
        kind = rng.choice(kinds)
        length_s = 0.01 if kind is Kind.SUSPENDED else rng.uniform(_SHORTEST_S, 250.0)
        visits.append(_visit(rng, kind, t_s, t_s + length_s, cores=cores, gpus=gpus))
        # Some come while another one is there; after most the machine is idle for long enough to start.
        t_s += rng.uniform(5.0, length_s) if rng.random() < 0.15 else length_s + rng.uniform(500.0, 1_000.0)
    return Machine(
        seed=seed,
        cores=cores,
        gpus=gpus,
        noise_cores=rng.uniform(0.0, 0.04) * cores,
        blip_every_s=rng.choice((None, 61.0, 13.0)),
        blip_s=rng.uniform(0.1, 0.6),
        visits=tuple(visits),
    )


def _visit(rng: random.Random, kind: Kind, from_s: float, until_s: float, *, cores: int, gpus: int) -> Visit:
    own_cores = 0.0
    if kind is Kind.CPU:
        own_cores = rng.uniform(max(0.15 * cores, 0.4), cores)
    elif kind is Kind.COMPUTES:
        own_cores = rng.uniform(0.0, 1.0)
    return Visit(
        kind=kind,
        from_s=from_s,
        until_s=until_s,
        gpu=rng.randrange(max(gpus, 1)),
        cores=own_cores,
        pid=rng.choice((1, _NOWHERE + rng.randrange(1000))),
    )


def scenario_of(machine: Machine) -> Scenario:
    """Return what the fake driver shows of a machine; hidden kernels are written by `play`."""
    gpus = []
    for index in range(machine.gpus):
        here = [visit for visit in machine.visits if visit.gpu == index]
        desktop = Process(pid=_NOWHERE + 5_000, memory_bytes=600 << 20, kind=ProcessKind.GRAPHICS)
        processes = [desktop] if index == 0 and machine.seed % 3 == 0 else []
        processes += [
            Process(pid=visit.pid, memory_bytes=2 << 30, from_s=visit.from_s, until_s=visit.until_s)
            for visit in here
            if visit.kind in (Kind.COMPUTES, Kind.HOLDS)
        ]
        points = [(0.0, 0.0)]
        for visit in sorted(here, key=lambda visit: visit.from_s):
            if visit.kind is Kind.HIDDEN_MEMORY:
                points += [(visit.from_s, float(3 << 30)), (visit.until_s, 0.0)]
        gpus.append(
            Gpu(memory_reserved_bytes=700 << 20, memory_used_bytes=Timeline(tuple(points)), processes=tuple(processes))
        )
    faults = [
        Fault(code=15, gpu=visit.gpu, from_s=visit.from_s, until_s=visit.until_s)
        for visit in machine.visits
        if visit.kind is Kind.GPU_LOST
    ]
    faults += [
        Fault(code=9, from_s=visit.from_s, until_s=visit.until_s)
        for visit in machine.visits
        if visit.kind is Kind.DRIVER_LOST
    ]
    return Scenario(gpus=tuple(gpus), follow=True, window_s=1 / 6, faults=tuple(faults))
