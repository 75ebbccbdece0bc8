"""Idleness: whether the machine has been idle for long enough, and the reason if not. Pure: it knows readings only."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from autotune.daemon.idle import wording
from autotune.daemon.idle.foreign_load import ForeignLoad
from autotune.daemon.idle.policy import IdlePolicy
from autotune.daemon.idle.reading import GpuReading, MachineReading
from autotune.durations import format_duration

_SLEPT_S = 1.0
_SHORTEST_S = 1.0  # the utilization of a GPU is that since the last reading, and of this time at least
_LONGEST_WINDOW_S = 1.0  # of the driver: a sample is about as much time before it
_LATE = 2.5  # times the interval of a close look: a reading may be late on a busy machine


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

    While no search of ours runs each reading goes to `update`, else to `Arrivals.update` and, if nobody came, to
    `nobody_came`: then the next search need not wait for another ten minutes.

    Args:
        policy: Limits and times.
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

    def nobody_came(self, reading: MachineReading) -> None:
        """Take a reading with a search of ours, and nobody else."""
        self._last, self._own_s = reading, reading.t_s
        self._note_spans(reading)
        self._close_since_s = None
        if self._since_s is None:
            self._since_s = reading.t_s

    def update(self, reading: MachineReading) -> IdleState:
        """Take a reading without a search of ours, made by the same watch as the ones before."""
        last, self._last = self._last, reading
        if last is None and self._since_s is not None:
            self._own_s = reading.t_s
        gap_s = 0.0 if last is None else reading.t_s - last.t_s
        if self._load is None:
            self._load = ForeignLoad(limit_cores=self._policy.cpu_fraction * reading.cores, loud_s=self._policy.loud_s)
        self._load.update(reading)
        is_close = 0.0 < gap_s <= _LATE * self._policy.close_look_s
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
        """Return the reason why the machine is not idle at this moment; None if it is."""
        if why := reading.why_unknown(self._uuids):
            return why
        for gpu in reading.gpus_of(self._uuids):
            if why := self._why_gpu_in_use(gpu):
                return why
        if reading.foreign_cores is None:
            return "the load of the machine is not known yet"
        assert self._load is not None
        if self._load.is_somebody or (self._load.is_loud and not is_close):
            return wording.cores_used(reading, self._load.cores)
        return None

    def _why_gpu_in_use(self, gpu: GpuReading) -> str | None:
        """Return the reason why a GPU is not idle; None if it is."""
        policy = self._policy
        if gpu.why_unknown is not None:
            return wording.unknown(gpu)
        if gpu.neighbours:
            return wording.in_use(gpu)
        # The driver takes a while to free the memory of our own search, and goes on to show its kernels.
        held_bytes = 0 if gpu.unlisted_bytes is None else gpu.unlisted_bytes
        if held_bytes >= policy.unlisted_bytes and gpu.t_s - self._own_s >= policy.own_gone_s:
            return wording.memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= policy.busy_fraction
        if runs and self._spans[gpu.uuid][0] - self._own_s >= _LONGEST_WINDOW_S:
            return wording.kernels_run(gpu)
        return None

    def _note_spans(self, reading: MachineReading) -> None:
        for gpu in reading.gpus:
            _, last_s = self._spans.get(gpu.uuid, (0.0, gpu.t_s))
            if gpu.uuid not in self._spans or last_s != gpu.t_s:
                self._spans[gpu.uuid] = (min(last_s, gpu.t_s - _SHORTEST_S), gpu.t_s)
