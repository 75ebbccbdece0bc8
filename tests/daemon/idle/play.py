"""Play of a timeline in virtual time: ``python -m tests.daemon.idle.play SEED``, on a machine of the fake driver.

A daemon is played that searches whenever the machine is idle: it starts at the first moment that it may, and leaves
when somebody comes. All that decides is the product's own, and so is all that reads the driver; the host is made up.
"""

import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field, replace

from autotune.clock import VirtualClock
from autotune.daemon.idleness import Arrivals, Idleness, IdlePolicy
from autotune.daemon.machine_watch import GpuAttribution, MachineWatch
from autotune.measure.gpu.occupancy import GpusSeen, OccupancyWatch
from autotune.measure.host import BusyCpu
from autotune.measure.processes import ProcessStat, ProcessTree
from tests.daemon.idle.timelines import LENGTH_S, Kind, Machine, machine_of
from tests.fake_nvml.busy_writer import BusyWriter

ORIGIN_S = 1_000.0
_BUDGET_S = 100.0
_NEXT_S = 5.0  # until the daemon has planned another search
_TRIAL_S = 3.0
# As measured on real searches: trainers that listen to SIGTERM, two that do not, and a search that had to be killed.
_STOPS_S = (0.15, 0.15, 0.2, 0.2, 0.7, 0.9, 1.6)
_NO_NOTICE_S = 1.5  # who came that shortly before a start is met by the search


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """Somebody who came while a search ran; times since the timeline's origin."""

    kind: str
    came_s: float
    noticed_s: float
    gone_s: float
    reason: str


@dataclass(kw_only=True)
class Played:
    """Outcome of a timeline.

    Attributes:
        starts_s: When searches were started.
        wrong: Starts that should not have been: the time, and that at which somebody was last there.
        missed_s: Time in which the machine was idle, and no search was started.
        leavings: Who came while a search ran.
        left_for_nobody: Reasons for which a search left while nobody was there.
    """

    starts_s: list[float] = field(default_factory=list)
    wrong: list[tuple[float, float]] = field(default_factory=list)
    missed_s: float = 0.0
    leavings: list[Leaving] = field(default_factory=list)
    left_for_nobody: list[tuple[float, str]] = field(default_factory=list)


class PlayedHost(BusyCpu):
    """CPU time of the made-up host, and the process tree of the played daemon, whose trials come and go."""

    def __init__(self, machine: Machine, clock: VirtualClock) -> None:
        self.cores, self.is_whole_machine = float(machine.cores), False
        self._machine, self._clock = machine, clock
        self.own_s, self.own_cores, self.since_s = 0.0, 0.0, 0.0

    def search(self, cores: float) -> None:
        """Let the search use so many cores from now on; 0 for no search."""
        now_s = self._clock.now_s() - ORIGIN_S
        self.own_s += self.own_cores * (now_s - self.since_s)
        self.own_cores, self.since_s = cores, now_s

    def used_s(self) -> float:
        """Return the CPU time of our own processes up to now."""
        return self.own_s + self.own_cores * (self._clock.now_s() - ORIGIN_S - self.since_s)

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
        began_s = self._clock.now_s() - self._clock.now_s() % _TRIAL_S
        own = self._host.own_cores * min(
            self._clock.now_s() - began_s, self._clock.now_s() - ORIGIN_S - self._host.since_s
        )
        daemon = _stat(0.0, waited_s=self._host.used_s() - own)
        return {os.getpid(): daemon, 3_000_000: _stat(began_s, cpu_s=own)} if own else {os.getpid(): daemon}


def _stat(started_s: float, *, cpu_s: float = 0.0, waited_s: float = 0.0) -> ProcessStat:
    return ProcessStat(
        name="python",
        started_s=started_s,
        parent=1,
        session=1,
        cpu_s=cpu_s,
        waited_cpu_s=waited_s,
        resident_bytes=0,
        is_dead=False,
        is_kernel_thread=False,
    )


class PlayedGpus(OccupancyWatch):
    """Watch of the fake driver, which hangs for some time; without GPUs there is no driver."""

    def __init__(self, machine: Machine, clock: VirtualClock) -> None:
        super().__init__(clock, wait_s=60.0)
        self._machine, self._now = machine, clock.now_s

    def look(self, *, newest_s: float) -> GpusSeen:
        """See `OccupancyWatch.look`."""
        if not self._machine.gpus:
            return GpusSeen(t_s=self._now(), why_none="no NVIDIA driver was found")
        if self._machine.blocked(self._now() - ORIGIN_S):
            return GpusSeen(t_s=self._now(), why_unknown="the NVIDIA driver has not answered for 0.3 s")
        return super().look(newest_s=newest_s)


class Play:
    """Played daemon on a machine."""

    def __init__(self, machine: Machine, policy: IdlePolicy | None = None) -> None:
        self._machine, self._policy = machine, policy or IdlePolicy()
        self._clock = VirtualClock(ORIGIN_S)
        self._host = PlayedHost(machine, self._clock)
        self._rng = random.Random(f"play {machine.seed}")
        self._watch = MachineWatch(
            self._clock,
            gpus=PlayedGpus(machine, self._clock),
            attribution=GpuAttribution(shares_pids=True),
            cpu=self._host,
            tree=PlayedTree(self._host, self._clock),
        )
        self._played = Played()
        self._searches: list[tuple[float, float]] = []
        if machine.gpus:
            self._write_hidden_kernels()

    def run(self) -> Played:
        """Play it to its end."""
        idleness, since_s = Idleness(self._policy), 0.0
        while self._now_s < LENGTH_S:
            reading = self._read()
            state = idleness.update(reading)
            if state.is_idle:
                self._start(since_s)
                is_ours = self._search()
                if is_ours:
                    self._wait(_NEXT_S)
                idleness = Idleness(self._policy, idle_since_s=state.idle_since_s if is_ours else None)
                since_s = self._now_s
            else:
                self._wait(state.look_again_s * self._rng.uniform(1.0, 1.1))
        self._watch.close()
        return self._played

    @property
    def _now_s(self) -> float:
        return self._clock.now_s() - ORIGIN_S

    def _read(self):
        reading = self._watch.read()
        return replace(reading, asleep_s=self._machine.asleep_s(self._now_s))

    def _wait(self, seconds: float) -> None:
        self._clock.wait(seconds)
        if self._machine.gpus:
            path = os.environ["AUTOTUNE_FAKE_NVML_CLOCK"]
            with open(path + ".new", "w") as file:
                file.write(str(round(self._clock.now_s() * 1e9)))
            os.replace(path + ".new", path)

    def _start(self, since_s: float) -> None:
        """Note a start, and whether it was right and in time."""
        now_s, disturbed_s = self._now_s, self._machine.last_disturbed_s(self._now_s, self._searches)
        idle = self._policy.idle_s
        just_came = [v for v in self._machine.visits if now_s - _NO_NOTICE_S <= v.from_s <= now_s]
        if now_s - disturbed_s < idle and not just_came:
            self._played.wrong.append((now_s, disturbed_s))
        self._played.starts_s.append(now_s)
        self._played.missed_s += max(0.0, now_s - max(disturbed_s + idle, since_s))

    def _search(self) -> bool:
        """Search until somebody comes, or the budget is used up; return False if somebody came."""
        own = self._use_gpu() if self._machine.gpus else None
        self._host.search(self._rng.uniform(0.2, self._machine.cores))
        arrivals, began_s, reason = Arrivals(self._policy), self._now_s, None
        while self._now_s < began_s + _BUDGET_S:
            if own is not None:
                own.kernel(self._clock.now_s(), self._clock.now_s() + 0.2)
            reading = self._read()
            reason = arrivals.update(reading)
            if reason:
                break
            self._wait(self._policy.close_look_s * self._rng.uniform(1.0, 1.2))
        noticed_s = self._now_s
        self._wait(self._rng.choice(_STOPS_S) if reason else 0.1)
        self._host.search(0.0)
        if own is not None:
            own.close()
        self._searches.append((began_s, self._now_s))
        visit = self._machine.arrival_s(began_s - _NO_NOTICE_S, noticed_s)
        if visit is not None:
            self._played.leavings.append(
                Leaving(
                    kind=visit.kind.value,
                    came_s=visit.from_s,
                    noticed_s=noticed_s,
                    gone_s=self._now_s,
                    reason=reason or "the budget was used up",
                )
            )
        elif reason and self._machine.last_disturbed_s(noticed_s, ()) < noticed_s - 1.0:
            self._played.left_for_nobody.append((noticed_s, reason))
        return reason is None

    def _use_gpu(self) -> BusyWriter:
        gpu = self._rng.randrange(self._machine.gpus)
        return BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"], gpu, memory_bytes=8 << 30)

    def _write_hidden_kernels(self) -> None:
        """Write kernels of processes that have no context: those that a container does not show."""
        for number, visit in enumerate(self._machine.visits):
            if visit.kind is Kind.HIDDEN_KERNELS:
                folder = os.environ["AUTOTUNE_FAKE_NVML_TENANTS"]
                writer = BusyWriter(folder, visit.gpu, memory_bytes=0, pid=5_000_000 + number)
                writer.kernel(ORIGIN_S + visit.from_s, ORIGIN_S + visit.until_s)
                writer.close()


if __name__ == "__main__":
    print(json.dumps(asdict(Play(machine_of(int(sys.argv[1]))).run())))
