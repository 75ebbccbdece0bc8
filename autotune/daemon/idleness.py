"""Idleness: whether the machine has been idle for long enough, and the reason if not. Pure: it knows readings only."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from autotune.clock import format_duration
from autotune.measure.gpu.driver import Occupant
from autotune.measure.host import BusyProcess

_SLEPT_S = 1.0
_SHORTEST_S = 1.0  # the utilization of a GPU is that since the last reading, and of this time at least


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """Verdict on the machine.

    Attributes:
        is_idle: Whether a search may start now.
        idle_since_s: Monotonic time since which nobody has been there; None if somebody is, or nothing is known.
        reason: Phrase for people: who is there, or for how long nobody has been.
        look_again_s: Time until the next reading, if something waits for the machine. A start needs close looks right
            before it; with nothing waiting there is no need for these, and `IdlePolicy.look_s` will do.
    """

    is_idle: bool
    idle_since_s: float | None
    reason: str
    look_again_s: float


class Idleness:
    """Idleness of the machine, and of some of its GPUs.

    While no search of ours runs each reading goes to `update`, else to `Arrivals.update`. If nobody came meanwhile, the
    watch after it is told since when: then the next search need not wait for another ten minutes.

    Args:
        uuids: GPUs that the search would use; None for all there are, empty for none.
        idle_since_s: Monotonic time since which nobody has been there, as another watch has seen, with a search of
            ours until now; None if that is not known.
    """

    def __init__(
        self,
        policy: IdlePolicy | None = None,
        *,
        uuids: Collection[str] | None = None,
        idle_since_s: float | None = None,
    ) -> None:
        self._policy = policy or IdlePolicy()
        self._uuids = uuids
        self._last: MachineReading | None = None
        self._load: ForeignLoad | None = None
        self._since_s = idle_since_s
        self._close_since_s: float | None = None  # since when it has been looked at closely, and was quiet
        self._own_s = -math.inf  # the last reading with a search of ours
        self._spans: dict[str, tuple[float, float]] = {}  # from when to when the utilization of each GPU is

    def update(self, reading: MachineReading) -> IdleState:
        """Take a reading without a search of ours, made by the same watch as the ones before."""
        last, self._last = self._last, reading
        if last is None and self._since_s is not None:
            self._own_s = reading.t_s
        gap_s = 0.0 if last is None else reading.t_s - last.t_s
        if self._load is None:
            self._load = ForeignLoad(limit_cores=self._policy.cpu_fraction * reading.cores, loud_s=self._policy.loud_s)
        self._load.update(reading)
        # times the interval of a close look: a reading may be late on a busy machine
        is_close = 0.0 < gap_s <= 2.5 * self._policy.close_look_s
        if last is not None and (gap_s > self._policy.longest_gap_s or reading.asleep_s - last.asleep_s > _SLEPT_S):
            self._since_s = None  # nobody knows who was there meanwhile
        self._note_spans(reading)
        reason = self._why_not(reading, is_close=is_close)
        if reason is not None:
            self._since_s = self._close_since_s = None
            return IdleState(is_idle=False, idle_since_s=None, reason=reason, look_again_s=self._policy.look_s)
        if self._since_s is None:
            self._since_s = reading.t_s
        if self._load.is_loud or not is_close:  # a blip does not end the idle time, but is no moment to start
            self._close_since_s = None
        elif self._close_since_s is None:
            self._close_since_s = max(self._since_s, reading.t_s - gap_s)
        return self._state(reading.t_s)

    def _state(self, now_s: float) -> IdleState:
        policy, since_s = self._policy, self._since_s
        assert since_s is not None
        idle_s = now_s - since_s
        close_in_s = policy.idle_s - policy.close_s - idle_s
        is_close = self._close_since_s is not None and now_s - self._close_since_s >= policy.close_s
        is_alone = now_s - self._own_s >= policy.own_gone_s + policy.close_s
        is_idle = idle_s >= policy.idle_s and is_close and is_alone
        if idle_s < policy.idle_s:
            reason = f"idle for {format_duration(idle_s)} of {format_duration(policy.idle_s)}"
        else:
            reason = f"idle for {format_duration(idle_s)}{'' if is_idle else ', and looked at closely before a start'}"
        return IdleState(
            is_idle=is_idle,
            idle_since_s=since_s,
            reason=reason,
            look_again_s=min(policy.look_s, max(policy.close_look_s, close_in_s)),
        )

    def _why_not(self, reading: MachineReading, *, is_close: bool) -> str | None:
        if why := reading.why_unknown(self._uuids):
            return why
        for gpu in reading.gpus_of(self._uuids):
            if why := self._why_gpu_in_use(gpu):
                return why
        if reading.foreign_cores is None:
            return "the load of the machine is not known yet"
        assert self._load is not None
        if self._load.is_somebody or (self._load.is_loud and not is_close):
            return cores_used(reading, self._load.cores)
        return None

    def _why_gpu_in_use(self, gpu: GpuReading) -> str | None:
        policy = self._policy
        if gpu.why_unknown is not None:
            return unknown(gpu)
        if gpu.neighbours:
            return in_use(gpu)
        # The driver takes a while to free the memory of our own search, and goes on to show its kernels.
        held_bytes = 0 if gpu.unlisted_bytes is None else gpu.unlisted_bytes
        if held_bytes >= policy.unlisted_bytes and gpu.t_s - self._own_s >= policy.own_gone_s:
            return memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= policy.busy_fraction
        # of the driver: a sample is about as much time before it
        if runs and self._spans[gpu.uuid][0] - self._own_s >= 1.0:
            return kernels_run(gpu)
        return None

    def _note_spans(self, reading: MachineReading) -> None:
        for gpu in reading.gpus:
            _, last_s = self._spans.get(gpu.uuid, (0.0, gpu.t_s))
            if gpu.uuid not in self._spans or last_s != gpu.t_s:
                self._spans[gpu.uuid] = (min(last_s, gpu.t_s - _SHORTEST_S), gpu.t_s)


class Arrivals:
    """Watch for somebody who comes, from the start of one search to its end.

    Args:
        uuids: GPUs that the search uses; None for all there are, empty for none.
    """

    def __init__(self, policy: IdlePolicy | None = None, *, uuids: Collection[str] | None = None) -> None:
        self._policy = policy or IdlePolicy()
        self._uuids = uuids
        self._last: MachineReading | None = None
        self._load: ForeignLoad | None = None
        self._gpus: dict[str, _WatchedGpu] = {}
        self._unknown_since_s: float | None = None

    def update(self, reading: MachineReading) -> str | None:
        """Take a reading; return the reason to leave now, None to go on."""
        policy, last = self._policy, self._last
        self._last = reading
        if last is not None and reading.asleep_s - last.asleep_s > _SLEPT_S:
            return "the machine was suspended"
        if self._load is None:
            limit_cores = max(policy.cpu_fraction * reading.cores, policy.least_cores)
            self._load = ForeignLoad(limit_cores=limit_cores, loud_s=policy.loud_s)
        gpus = reading.gpus_of(self._uuids)
        for gpu in gpus:
            watched = self._gpus.setdefault(gpu.uuid, _WatchedGpu(policy, reading.t_s))
            if why := watched.update(gpu):
                return why
        self._load.update(reading)
        if self._load.is_somebody:
            return cores_used(reading, self._load.cores)
        return self._unknown_for_long(reading, gpus)

    def _unknown_for_long(self, reading: MachineReading, gpus: Collection[GpuReading]) -> str | None:
        why = reading.why_unknown(self._uuids) or next((unknown(gpu) for gpu in gpus if gpu.why_unknown), None)
        since_s = reading.t_s if self._unknown_since_s is None else self._unknown_since_s
        self._unknown_since_s = None if why is None else since_s
        return why if reading.t_s - since_s >= self._policy.unknown_s else None


class _WatchedGpu:
    """One GPU while a search runs."""

    def __init__(self, policy: IdlePolicy, now_s: float) -> None:
        self._policy = policy
        self._drawing: frozenset[int] | None = None  # who drew when the search began
        self._own_s = now_s  # last reading with a process of ours
        self._odd_s: float | None = None  # since when there are signs of somebody who is not listed

    def update(self, gpu: GpuReading) -> str | None:
        """Take a reading; return the reason to leave, None if nobody came."""
        if gpu.why_unknown is not None:
            return None
        if gpu.neighbours:
            return in_use(gpu)
        if self._drawing is None:
            self._drawing = frozenset(process.pid for process in gpu.drawing)
        for process in gpu.drawing:
            if process.pid not in self._drawing and (process.memory_bytes or 0) >= self._policy.drawing_bytes:
                return f"{_named(process)} came to draw on {gpu_label(gpu)}"
        if gpu.has_own:
            self._own_s = gpu.t_s
        signs = self._signs(gpu)
        self._odd_s = None if signs is None else gpu.t_s if self._odd_s is None else self._odd_s
        # between two readings of a GPU that count as two
        return signs if self._odd_s is not None and gpu.t_s - self._odd_s >= 0.3 else None

    def _signs(self, gpu: GpuReading) -> str | None:
        # A context of ours may take some memory that the driver lists for no process.
        limit_bytes = self._policy.unlisted_bytes * (2 if gpu.has_own else 1)
        if gpu.unlisted_bytes is not None and gpu.unlisted_bytes >= limit_bytes:
            return memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= self._policy.busy_fraction
        if runs and gpu.t_s - self._own_s >= self._policy.own_gone_s:
            return kernels_run(gpu)
        return None


_ROUNDING_S = 1e-6
_RECENT_S = 2.0  # over which the load is averaged that people are told


class ForeignLoad:
    """Time for which others have used more than a limit, less the time since then for which they have used less.

    So one who gets the CPU in turns with us is somebody as well, only a little later, and a job of cron that comes
    again and again is not.
    """

    def __init__(self, *, limit_cores: float, loud_s: float) -> None:
        self._limit_cores = limit_cores
        self._least_s = loud_s
        self._evidence_s = 0.0
        self._used_s = self._over_s = 0.0  # CPU time of others, and the time in which they used it
        self.is_loud = False
        """True if the last reading was above the limit."""

    def update(self, reading: MachineReading) -> None:
        """Take a reading; one without a load changes nothing."""
        cores, span_s = reading.foreign_cores, reading.span_s
        if cores is None:
            return
        self.is_loud = cores >= self._limit_cores
        self._evidence_s += span_s if self.is_loud else -span_s
        self._evidence_s = min(self._evidence_s, self._least_s)
        if self._evidence_s <= 0.0:
            self._evidence_s = self._used_s = self._over_s = 0.0
            return
        if self._over_s > _RECENT_S:
            self._used_s, self._over_s = self._used_s * _RECENT_S / self._over_s, _RECENT_S
        self._used_s += cores * span_s
        self._over_s += span_s

    @property
    def is_somebody(self) -> bool:
        """True if it is loud now, and has been for long enough."""
        return self.is_loud and self._evidence_s >= self._least_s - _ROUNDING_S

    @property
    def cores(self) -> float:
        """Cores that others have used on average since that began, or lately."""
        return self._used_s / self._over_s if self._over_s else 0.0


@dataclass(frozen=True, kw_only=True)
class IdlePolicy:
    """Limits and times by which a machine is idle, and by which somebody has come.

    Attributes:
        idle_s: Time without a break for which nobody must have been there.
        cpu_fraction: Share of the cores that others may use.
        least_cores: Cores that others may use in any case while a search runs: less cannot be told from rounding and
            from what the search itself causes in others.
        loud_s: Time for which they have to use more without a break to be somebody: a job of cron is shorter, or uses
            less.
        unlisted_bytes: GPU memory that may be held without a process: no context of CUDA is as small.
        drawing_bytes: Memory with which a process that came to draw, while a search runs, is somebody.
        busy_fraction: Share of time in which kernels of others may run: a desktop's drawing is not work.
        own_gone_s: Time since the last process of ours, from which on kernels that run are those of others.
        unknown_s: Time for which a search may run while there is no knowing who is there.
        longest_gap_s: Longest time between two readings that counts as idle.
        look_s: Time between two readings while nothing is about to start.
        close_s: Time before a start during which the machine is looked at closely.
        close_look_s: Time between two readings then, and while a search runs.
    """

    idle_s: float = 600.0
    cpu_fraction: float = 0.10
    least_cores: float = 0.25
    loud_s: float = 0.9
    unlisted_bytes: int = 256 << 20
    drawing_bytes: int = 256 << 20
    busy_fraction: float = 0.05
    own_gone_s: float = 2.0
    unknown_s: float = 10.0
    longest_gap_s: float = 35.0
    look_s: float = 10.0
    close_s: float = 2.0
    close_look_s: float = 0.25


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """State of one GPU, or of one MIG instance.

    Attributes:
        t_s: Monotonic time at which it was read; several readings of the machine may hold the same one.
        neighbours: Processes with a compute context that are not ours.
        drawing: Processes that only draw, such as a desktop.
        has_own: Whether a process of ours holds it.
        unlisted_bytes: Memory that is held though no process is listed for it; None where that cannot be told, since
            the driver says too little or hides our own processes too.
        utilization: Share of the time since the last reading, and of the last second at least, in which kernels ran;
            None where it is not reported.
        memory_fraction: Share of its memory in use, 0..1; None where it is not reported.
        throttled_by: Reasons for which its clocks are held down that make it slower; None where that is not reported.
        why_unknown: Reason, for people, why nothing is known of it; None otherwise.
    """

    t_s: float
    index: int
    uuid: str
    neighbours: tuple[Occupant, ...] = ()
    drawing: tuple[Occupant, ...] = ()
    has_own: bool = False
    unlisted_bytes: int | None = 0
    utilization: float | None = 0.0
    memory_fraction: float | None = None
    throttled_by: tuple[str, ...] | None = None
    why_unknown: str | None = None


@dataclass(frozen=True, kw_only=True)
class MachineReading:
    """State of the machine.

    Attributes:
        span_s: Time since the last reading; 0 for the first.
        cores: Cores that this user's processes may use.
        foreign_cores: Cores that others used on average in that time; None where it is not known.
        busiest: The process of somebody else that used most of them; None where it was not looked for.
        gpus: The GPUs; empty where there is none, or nothing is known of them.
        why_no_load: Reason, for people, why there is no knowing how much of the CPU others use; None otherwise.
        why_no_gpus: Reason, for people, why nothing is known of any GPU, such as a driver that does not answer; None
            otherwise, and also where there is no driver, and so no GPU to be used by anybody.
        asleep_s: Time for which the machine was suspended since it was booted.
    """

    t_s: float
    span_s: float
    cores: float
    foreign_cores: float | None
    busiest: BusyProcess | None = None
    gpus: tuple[GpuReading, ...] = ()
    why_no_load: str | None = None
    why_no_gpus: str | None = None
    asleep_s: float = 0.0

    def why_unknown(self, uuids: Collection[str] | None) -> str | None:
        """Return the reason why there is no knowing whether others use the machine and these GPUs; None otherwise."""
        return self.why_no_load or (None if uuids is not None and not uuids else self.why_no_gpus)

    def gpus_of(self, uuids: Collection[str] | None) -> tuple[GpuReading, ...]:
        """Return the GPUs of some UUIDs, all for None; nothing is known of one that is not there."""
        if uuids is None:
            return self.gpus
        there = {gpu.uuid: gpu for gpu in self.gpus}
        return tuple(
            there.get(uuid) or GpuReading(t_s=self.t_s, index=-1, uuid=uuid, why_unknown="it is not there")
            for uuid in uuids
        )


# Reasons, for people, why a machine is not idle.


def gpu_label(gpu: GpuReading) -> str:
    """Return the name of a GPU, or of an instance of one."""
    if gpu.index < 0:
        return f"GPU {gpu.uuid}"
    return f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid.startswith("MIG-") else f"GPU {gpu.index}"


def unknown(gpu: GpuReading) -> str:
    """Return the reason that nothing is known of a GPU."""
    return f"nothing is known of {gpu_label(gpu)}: {gpu.why_unknown}"


def in_use(gpu: GpuReading) -> str:
    """Return the reason that processes of others compute on a GPU."""
    more = len(gpu.neighbours) - 1
    others = f" and {more} more" if more else ""
    return f"{gpu_label(gpu)} is in use by {_named(gpu.neighbours[0])}{others}"


def memory_held(gpu: GpuReading) -> str:
    """Return the reason that memory of a GPU is held by nobody who is listed."""
    held = (gpu.unlisted_bytes or 0) / 2**30
    return f"{held:.1f} GiB of {gpu_label(gpu)} are held by processes that the driver does not show"


def kernels_run(gpu: GpuReading) -> str:
    """Return the reason that kernels of others run on a GPU."""
    return f"{gpu_label(gpu)} is at work for others: kernels run {gpu.utilization or 0.0:.0%} of the time"


def cores_used(reading: MachineReading, cores: float) -> str:
    """Return the reason that others use so many cores."""
    used = f"others use {cores:.1f} of {reading.cores:g} cores"
    busiest = reading.busiest
    # One that uses less than half of it is not the reason.
    return f"{used}, {_named(busiest)}" if busiest and busiest.cores >= cores / 2 else used


def _named(process: Occupant | BusyProcess) -> str:
    # A process may call itself anything.
    clean = "".join(letter if letter.isprintable() else "?" for letter in process.name or "")
    return f"{clean} (process {process.pid})" if clean else f"process {process.pid}"
