"""Arrivals: whether somebody came while a search of ours runs. Pure: it knows readings only."""

from collections.abc import Collection

from autotune.daemon.idle import wording
from autotune.daemon.idle.foreign_load import ForeignLoad
from autotune.daemon.idle.policy import IdlePolicy
from autotune.daemon.idle.reading import GpuReading, MachineReading

_SLEPT_S = 1.0
_ANOTHER_S = 0.3  # between two readings of a GPU that count as two


class Arrivals:
    """Watch for somebody who comes, from the start of one search to its end.

    Args:
        policy: Limits and times.
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
            return wording.cores_used(reading, self._load.cores)
        return self._unknown_for_long(reading, gpus)

    def _unknown_for_long(self, reading: MachineReading, gpus: Collection[GpuReading]) -> str | None:
        why = reading.why_unknown(self._uuids) or next((wording.unknown(gpu) for gpu in gpus if gpu.why_unknown), None)
        if why is None:
            self._unknown_since_s = None
            return None
        if self._unknown_since_s is None:
            self._unknown_since_s = reading.t_s
        return why if reading.t_s - self._unknown_since_s >= self._policy.unknown_s else None


class _WatchedGpu:
    """One GPU while a search runs.

    Args:
        policy: Limits and times.
        now_s: Monotonic time.
    """

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
            return wording.in_use(gpu)
        if self._drawing is None:
            self._drawing = frozenset(process.pid for process in gpu.drawing)
        for process in gpu.drawing:
            if process.pid not in self._drawing and (process.memory_bytes or 0) >= self._policy.drawing_bytes:
                return f"{wording.process_label(process)} came to draw on {wording.gpu_label(gpu)}"
        if gpu.has_own:
            self._own_s = gpu.t_s
        return self._for_a_while(gpu, self._signs(gpu))

    def _signs(self, gpu: GpuReading) -> str | None:
        # A context of ours may take some memory that the driver lists for no process.
        limit_bytes = self._policy.unlisted_bytes * (2 if gpu.has_own else 1)
        if gpu.unlisted_bytes is not None and gpu.unlisted_bytes >= limit_bytes:
            return wording.memory_held(gpu)
        runs = gpu.utilization is not None and gpu.utilization >= self._policy.busy_fraction
        if runs and gpu.t_s - self._own_s >= self._policy.own_gone_s:
            return wording.kernels_run(gpu)
        return None

    def _for_a_while(self, gpu: GpuReading, signs: str | None) -> str | None:
        """Return signs that two readings agree on: memory, and the list of who holds it, are not read as one."""
        if signs is None:
            self._odd_s = None
            return None
        if self._odd_s is None:
            self._odd_s = gpu.t_s
        return signs if gpu.t_s - self._odd_s >= _ANOTHER_S else None
