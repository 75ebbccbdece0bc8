"""Idle rule: when a search may start and has to stop."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from autotune.clock import format_duration
from autotune.measure.gpu.driver import Occupant
from autotune.measure.host import BusyProcess

_SLEPT_S = 1.0
_SHORTEST_S = 1.0  # minimum period over which the driver averages GPU utilization


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """Idle state of the machine.

    Attributes:
        idle_since_s: None if busy or unknown.
        reason: What keeps it busy, or the idle time.
        next_reading_s: Time until the next reading if an entry waits.
    """

    is_idle: bool
    idle_since_s: float | None
    reason: str
    next_reading_s: float


class Idleness:
    """Idle state of the machine and some GPUs while no search runs.

    During a search, readings go to `Arrivals`. If that doesn't stop it, pass `idle_since_s` to the next instance.

    Args:
        uuids: GPUs of the search; None for all.
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
        self._load = ForeignLoad(self._policy)
        self._since_s = idle_since_s
        self._close_since_s: float | None = None  # start of the quiet time with readings at short intervals
        self._own_s = -math.inf  # the last reading during an own search
        self._spans: dict[str, tuple[float, float]] = {}  # start and end of each GPU's utilization period

    def update(self, reading: MachineReading) -> IdleState:
        """Add a reading taken while no search runs."""
        last, self._last = self._last, reading
        if last is None and self._since_s is not None:
            self._own_s = reading.t_s
        gap_s = 0.0 if last is None else reading.t_s - last.t_s
        self._load.update(reading, limit_cores=self._policy.cpu_fraction * reading.cores)
        # 2.5 times the interval, because a reading may be late on a busy machine
        is_close = 0.0 < gap_s <= 2.5 * self._policy.close_interval_s
        if last is not None and (gap_s > self._policy.longest_gap_s or reading.asleep_s - last.asleep_s > _SLEPT_S):
            self._since_s = None  # the use during the gap is unknown
        self._note_spans(reading)
        reason = self._why_not(reading, is_close=is_close)
        if reason is not None:
            self._since_s = self._close_since_s = None
            return IdleState(is_idle=False, idle_since_s=None, reason=reason, next_reading_s=self._policy.interval_s)
        if self._since_s is None:
            self._since_s = reading.t_s
        if self._load.is_above_limit or not is_close:  # a short load delays a start, but doesn't end the idle time
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
            reason = f"idle for {format_duration(idle_s)}{'' if is_idle else '; checking again before a start'}"
        return IdleState(
            is_idle=is_idle,
            idle_since_s=since_s,
            reason=reason,
            next_reading_s=min(policy.interval_s, max(policy.close_interval_s, close_in_s)),
        )

    def _why_not(self, reading: MachineReading, *, is_close: bool) -> str | None:
        if why := reading.why_unknown(self._uuids):
            return why
        for gpu in reading.gpus_of(self._uuids):
            if why := self._why_gpu_in_use(gpu):
                return why
        if reading.foreign_cores is None:
            return "the CPU load is not known yet"
        if self._load.is_sustained or (self._load.is_above_limit and not is_close):
            return _cores_used(reading, self._load.cores)
        return None

    def _why_gpu_in_use(self, gpu: GpuReading) -> str | None:
        policy = self._policy
        if gpu.why_unknown is not None:
            return _unknown(gpu)
        if gpu.foreign:
            return _in_use(gpu)
        # After an own search, the driver frees its memory late and still reports its kernels.
        held_bytes = 0 if gpu.unlisted_bytes is None else gpu.unlisted_bytes
        if held_bytes >= policy.unlisted_bytes and gpu.t_s - self._own_s >= policy.own_gone_s:
            return _memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= policy.busy_fraction
        # a sample of the driver covers about this time before it
        if runs and self._spans[gpu.uuid][0] - self._own_s >= 1.0:
            return _kernels_run(gpu)
        return None

    def _note_spans(self, reading: MachineReading) -> None:
        for gpu in reading.gpus:
            _, last_s = self._spans.get(gpu.uuid, (0.0, gpu.t_s))
            if gpu.uuid not in self._spans or last_s != gpu.t_s:
                self._spans[gpu.uuid] = (min(last_s, gpu.t_s - _SHORTEST_S), gpu.t_s)


class Arrivals:
    """Detector of other processes that need the machine during one search.

    Args:
        uuids: GPUs of the search; None for all.
    """

    def __init__(self, policy: IdlePolicy | None = None, *, uuids: Collection[str] | None = None) -> None:
        self._policy = policy or IdlePolicy()
        self._uuids = uuids
        self._last: MachineReading | None = None
        self._load = ForeignLoad(self._policy)
        self._gpus: dict[str, _WatchedGpu] = {}
        self._unknown_since_s: float | None = None

    def update(self, reading: MachineReading) -> str | None:
        """Add a reading; return why the search has to stop, if so."""
        policy, last = self._policy, self._last
        self._last = reading
        if last is not None and reading.asleep_s - last.asleep_s > _SLEPT_S:
            return "the machine was suspended"
        gpus = reading.gpus_of(self._uuids)
        for gpu in gpus:
            watched = self._gpus.setdefault(gpu.uuid, _WatchedGpu(policy, reading.t_s))
            if why := watched.update(gpu):
                return why
        self._load.update(reading, limit_cores=max(policy.cpu_fraction * reading.cores, policy.least_cores))
        if self._load.is_sustained:
            return _cores_used(reading, self._load.cores)
        return self._unknown_for_long(reading, gpus)

    def _unknown_for_long(self, reading: MachineReading, gpus: Collection[GpuReading]) -> str | None:
        why = reading.why_unknown(self._uuids) or next((_unknown(gpu) for gpu in gpus if gpu.why_unknown), None)
        since_s = reading.t_s if self._unknown_since_s is None else self._unknown_since_s
        self._unknown_since_s = None if why is None else since_s
        return why if reading.t_s - since_s >= self._policy.unknown_s else None


class _WatchedGpu:
    def __init__(self, policy: IdlePolicy, now_s: float) -> None:
        self._policy = policy
        self._drawing: frozenset[int] | None = None  # graphics processes at the start of the search
        self._own_s = now_s  # last reading with an own process
        self._evidence_since_s: float | None = None  # start of the evidence for unlisted processes

    def update(self, gpu: GpuReading) -> str | None:
        if gpu.why_unknown is not None:
            return None
        if gpu.foreign:
            return _in_use(gpu)
        if self._drawing is None:
            self._drawing = frozenset(process.pid for process in gpu.drawing)
        for process in gpu.drawing:
            if process.pid not in self._drawing and (process.memory_bytes or 0) >= self._policy.drawing_bytes:
                return f"{_named(process)} started to draw on {gpu_label(gpu)}"
        if gpu.has_own:
            self._own_s = gpu.t_s
        evidence, since_s = self._evidence(gpu), self._evidence_since_s
        self._evidence_since_s = since_s = None if evidence is None else gpu.t_s if since_s is None else since_s
        # in two separate readings of the GPU
        return evidence if since_s is not None and gpu.t_s - since_s >= 0.3 else None

    def _evidence(self, gpu: GpuReading) -> str | None:
        # An own CUDA context may hold memory that the driver lists for no process.
        limit_bytes = self._policy.unlisted_bytes * (2 if gpu.has_own else 1)
        if gpu.unlisted_bytes is not None and gpu.unlisted_bytes >= limit_bytes:
            return _memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= self._policy.busy_fraction
        if runs and gpu.t_s - self._own_s >= self._policy.own_gone_s:
            return _kernels_run(gpu)
        return None


_ROUNDING_S = 1e-6
_RECENT_S = 2.0  # period of the average load in messages


class ForeignLoad:
    """Leaky integral of other CPU load: time above a limit minus time below it.

    It detects processes that alternate with ours, and ignores short cron jobs.
    """

    def __init__(self, policy: IdlePolicy) -> None:
        self._sustained_s = policy.sustained_s
        self._evidence_s = 0.0
        self._used_s = self._over_s = 0.0  # CPU time of other processes, and the time span of it
        self.is_above_limit = False

    def update(self, reading: MachineReading, *, limit_cores: float) -> None:
        cores, span_s = reading.foreign_cores, reading.span_s
        if cores is None:
            return
        self.is_above_limit = cores >= limit_cores
        self._evidence_s += span_s if self.is_above_limit else -span_s
        self._evidence_s = min(self._evidence_s, self._sustained_s)
        if self._evidence_s <= 0.0:
            self._evidence_s = self._used_s = self._over_s = 0.0
            return
        if self._over_s > _RECENT_S:
            self._used_s, self._over_s = self._used_s * _RECENT_S / self._over_s, _RECENT_S
        self._used_s += cores * span_s
        self._over_s += span_s

    @property
    def is_sustained(self) -> bool:
        return self.is_above_limit and self._evidence_s >= self._sustained_s - _ROUNDING_S

    @property
    def cores(self) -> float:
        """Mean cores used during the load, over about 2 s."""
        return self._used_s / self._over_s if self._over_s else 0.0


@dataclass(frozen=True, kw_only=True)
class IdlePolicy:
    """Limits of the idle rule.

    Attributes:
        cpu_fraction: Share of the cores that others may use.
        least_cores: Minimum of that limit during a search; less is rounding, or load caused by the search.
        sustained_s: Time above that limit that counts as busy; cron jobs are shorter.
        unlisted_bytes: Memory held without a listed process; every CUDA context is larger.
        drawing_bytes: Memory of a new graphics process that stops a search.
        busy_fraction: Time share of other kernels, such as a desktop's.
        own_gone_s: Time after the last own process until kernels count as others'.
        unknown_s: Time for which a search continues without readings.
        longest_gap_s: Between readings in the idle time.
        close_s: Time before a start with readings every `close_interval_s`, as during a search.
    """

    idle_s: float = 600.0
    cpu_fraction: float = 0.10
    least_cores: float = 0.25
    sustained_s: float = 0.9
    unlisted_bytes: int = 256 << 20
    drawing_bytes: int = 256 << 20
    busy_fraction: float = 0.05
    own_gone_s: float = 2.0
    unknown_s: float = 10.0
    longest_gap_s: float = 35.0
    interval_s: float = 10.0
    close_s: float = 2.0
    close_interval_s: float = 0.25


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """State of a GPU or MIG instance. Shares are 0..1; None means not reported.

    Attributes:
        t_s: Several machine readings may share one GPU reading.
        foreign: Others' processes with a compute context.
        drawing: Others' processes that only draw.
        unlisted_bytes: Memory held without a listed process; None if own processes may be hidden.
        utilization: Since the last reading, at least 1 s.
    """

    t_s: float
    index: int
    uuid: str
    foreign: tuple[Occupant, ...] = ()
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
        cores: That this user may use.
        foreign_cores: Mean use by others during `span_s`.
        busiest: Other process with the most CPU time, if searched for.
        why_no_gpus: Why GPUs are unknown; None without a driver, hence without GPUs.
        asleep_s: Time suspended since boot.
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
        """Return why the use of the machine or these GPUs is unknown."""
        return self.why_no_load or (None if uuids is not None and not uuids else self.why_no_gpus)

    def gpus_of(self, uuids: Collection[str] | None) -> tuple[GpuReading, ...]:
        """Return the readings of these UUIDs, all for None; missing GPUs have only `why_unknown`."""
        if uuids is None:
            return self.gpus
        there = {gpu.uuid: gpu for gpu in self.gpus}
        return tuple(
            there.get(uuid) or GpuReading(t_s=self.t_s, index=-1, uuid=uuid, why_unknown="not present")
            for uuid in uuids
        )


# Reasons why a machine is not idle, as phrases.


def gpu_label(gpu: GpuReading) -> str:
    """Return ``GPU`` and its number, with the UUID if needed."""
    if gpu.index < 0:
        return f"GPU {gpu.uuid}"
    return f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid.startswith("MIG-") else f"GPU {gpu.index}"


def _unknown(gpu: GpuReading) -> str:
    return f"no reading of {gpu_label(gpu)}: {gpu.why_unknown}"


def _in_use(gpu: GpuReading) -> str:
    more = len(gpu.foreign) - 1
    others = f" and {more} more" if more else ""
    return f"{gpu_label(gpu)} is in use by {_named(gpu.foreign[0])}{others}"


def _memory_held(gpu: GpuReading) -> str:
    held = (gpu.unlisted_bytes or 0) / 2**30
    return f"{held:.1f} GiB of {gpu_label(gpu)} are held by processes that the driver does not list"


def _kernels_run(gpu: GpuReading) -> str:
    share = 100 * (gpu.utilization or 0.0)
    return f"{gpu_label(gpu)} is busy with other processes: kernels run {share:.0f} % of the time"


def _cores_used(reading: MachineReading, cores: float) -> str:
    used = f"other processes use {cores:.1f} of {reading.cores:g} cores"
    busiest = reading.busiest
    return f"{used}, busiest: {_named(busiest)}" if busiest and busiest.cores >= cores / 2 else used


def _named(process: Occupant | BusyProcess) -> str:
    # A process name may hold control characters.
    clean = "".join(letter if letter.isprintable() else "?" for letter in process.name or "")
    return f"{clean} (process {process.pid})" if clean else f"process {process.pid}"
