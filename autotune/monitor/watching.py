"""Monitor of GPUs, and of a process that uses them: the readings that are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.errors import GpuError
from autotune.gpu.collect.records import Capability, GpuState
from autotune.gpu.discovery import present_gpus
from autotune.gpu.driver import GpuFacts
from autotune.gpu.throttling import THROTTLING
from autotune.gpu.visible_devices import visible_devices
from autotune.measure.oscillation import Pattern
from autotune.measure.utilization import MEANINGS, describe
from autotune.monitor.gpu_watch import GpuNow, GpuWatch, look_every_s
from autotune.monitor.process_steps import MonitoredProcess
from autotune.monitor.reading import GpuSummary, MonitorReading, MonitorSummary, ShownGpu, ShownVerdict

_IDLE = 0.005  # prints as 0 %
_NOTHING_RUNS = "next to nothing runs on it"
_SHOWN = (
    Capability.MEMORY,
    Capability.POWER,
    Capability.TEMPERATURE,
    Capability.CLOCK,
    Capability.REASONS,
)


class Monitor:
    """Monitor of the GPUs of this machine, or of those of a process; a context, outside of which nothing is read.

    Args:
        pid: The process; None watches all GPUs.
        clock: The machine's clock.

    Raises:
        GpuError: There is no GPU to watch, and no steps.
        AutotuneError: There is no such process.
    """

    def __init__(self, pid: int | None, clock: Clock) -> None:
        self._clock = clock
        self._process = None if pid is None else MonitoredProcess(pid, clock)
        self._labels: dict[str, str] = {}
        self._candidates: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._silent: tuple[str, ...] = ()
        self._used: tuple[str, ...] = ()
        try:
            present = present_gpus()
        except GpuError as error:
            if self._process is None or not self._process.has_steps:
                raise
            self._notes = (f"No GPU is shown: {error.message.removesuffix('.')}. {error.remedy}",)
        else:
            self._labels = _labels(present.gpus)
            self._candidates, self._notes = self._may_use(present.gpus)
            self._silent = present.silent
        self._watch = GpuWatch(list(self._labels), clock, by_process=pid is not None) if self._labels else None
        self._began_s = clock.now_s()

    def __enter__(self) -> Self:
        if self._watch is not None:
            self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def has_ended(self) -> bool:
        """True once the process that was asked for is gone."""
        return self._process is not None and self._process.has_ended

    @property
    def every_s(self) -> float:
        """Seconds between two readings that differ."""
        return look_every_s(len(self._labels))

    def reading(self) -> MonitorReading:
        """Return the reading of this moment.

        Raises:
            GpuError: The process uses no GPU, and reports no steps.
        """
        gpus = self._look()
        is_owned = self._process is not None
        return MonitorReading(
            t_s=self._clock.now_s(),
            utc=self._clock.utc(),
            watched_s=self._clock.now_s() - self._began_s,
            driver="" if self._watch is None else self._watch.driver,
            gpus=tuple(_shown(self._labels[uuid], gpu, is_owned=is_owned) for uuid, gpu in gpus.items()),
            process=None if self._process is None else self._process.shown(),
            notes=(*self._silent, *(() if self._used else self._notes)),
        )

    def summary(self) -> MonitorSummary:
        """Return the summary of all the time that was watched."""
        return MonitorSummary(
            t_s=self._clock.now_s(),
            utc=self._clock.utc(),
            watched_s=self._clock.now_s() - self._began_s,
            gpus=tuple(self._summarized(uuid, gpu) for uuid, gpu in self._look().items()),
            process=None if self._process is None else self._process.shown(),
        )

    def _may_use(self, present: Sequence[GpuFacts]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the devices to show while it is not known which the process uses, and notes on that."""
        every = tuple(self._labels)
        if self._process is None:
            return every, ()
        unknown = f"The driver shows process {self._process.pid} on no GPU"
        environ = self._process.environ()
        if environ is None:
            return every, (f"{unknown}, and its environment may not be read: all GPUs are shown.",)
        visible = visible_devices(present, environ)
        if visible.why_none:
            return (), (f"{unknown}: {visible.why_none}.",)
        setting = environ.get("CUDA_VISIBLE_DEVICES")
        those = "all that it may use" if setting is None else f"those of its CUDA_VISIBLE_DEVICES={setting}"
        further = (note for note in (visible.cut, visible.assumed) if note)
        return visible.uuids, (f"{unknown} (yet); {those} are shown.", *(f"{note}." for note in further))

    def _look(self) -> Mapping[str, GpuNow]:
        """Return the devices that are shown, by UUID."""
        if self._process is None:
            return {} if self._watch is None else self._watch.look()
        self._process.read()
        if self._watch is None:
            return {}
        own = self._process.pids()
        found = self._watch.look(own_pids=own, step_s=self._process.step_s)
        held = tuple(uuid for uuid, gpu in found.items() if gpu.state is not None and _holds(gpu, own))
        reported = tuple(uuid for uuid in found if self._process.says_it_uses(uuid))
        self._used = held or self._used or reported  # once known it stays: the driver may be lost for a while
        shown = self._used or self._candidates
        if not shown and not self._process.has_steps:
            raise GpuError(self._notes[0].removesuffix("."), remedy="Without --pid all GPUs of the machine are shown.")
        return {uuid: found[uuid] for uuid in shown}

    def _summarized(self, uuid: str, gpu: GpuNow) -> GpuSummary:
        assert self._watch is not None
        totals = self._watch.totals(uuid)
        return GpuSummary(
            label=self._labels[uuid],
            figures=replace(
                gpu.usage.figures,
                # Within the first second nothing new is known, but what the driver remembered.
                utilization=gpu.usage.figures.utilization if totals.utilization is None else totals.utilization,
                peak_memory_bytes=totals.peak_memory_bytes,
                power_w=totals.power_w,
                throttled_fraction=totals.throttled_fraction,
            ),
            highest_temperature_c=totals.highest_temperature_c,
            why_no_utilization=gpu.usage.why_no_utilization,
            verdict=_verdict(gpu),
            trouble=gpu.trouble,
        )


def _labels(present: Sequence[GpuFacts]) -> dict[str, str]:
    """Return a label for each device; a GPU that is cut into instances has none itself.

    Raises:
        GpuError: There are only such GPUs, and no instances.
    """
    labels = {}
    for gpu in sorted(present, key=lambda gpu: gpu.index):
        if gpu.mig_uuids is None:
            labels[gpu.uuid] = f"GPU {gpu.index}"
        else:
            labels |= {uuid: f"GPU {gpu.index} MIG {place}" for place, uuid in enumerate(gpu.mig_uuids)}
    if not labels:
        raise GpuError(
            "all GPUs are in MIG mode and have no instance",
            remedy="`nvidia-smi mig -lgip` lists the kinds of instances, `nvidia-smi mig -cgi KIND -C` makes one.",
        )
    return labels


def _holds(gpu: GpuNow, pids: frozenset[int]) -> bool:
    holders = () if gpu.state is None else gpu.state.holders or ()
    return any(pid in pids for pid, _, _ in holders)


def _shown(label: str, gpu: GpuNow, *, is_owned: bool) -> ShownGpu:
    usage, verdict = gpu.usage, _verdict(gpu)
    state = gpu.state or GpuState(t_s=usage.t1_s, uuid=usage.figures.uuid)
    return ShownGpu(
        label=label,
        figures=usage.figures if is_owned else replace(usage.figures, own_fraction=None, foreign_fraction=None),
        trouble=gpu.trouble,
        busy=gpu.busy,
        why_no_utilization=usage.why_no_utilization,
        memory_used_bytes=state.memory_bytes,
        power_w=state.power_w,
        temperature_c=state.temperature_c,
        sm_clock_mhz=state.sm_clock_mhz,
        clock_reasons=state.reasons,
        throttle_reasons=tuple(sorted(usage.clock_reasons.keys() & THROTTLING)),
        absent=tuple(f"{what} ({usage.absent[what]})" for what in _SHOWN if what in usage.absent),
        verdict=verdict,
        why_no_verdict=describe(gpu.utilization) if verdict is None and usage.figures.utilization is not None else None,
        windows=usage.windows,
    )


def _verdict(gpu: GpuNow) -> ShownVerdict | None:
    oscillation = gpu.utilization.oscillation
    if gpu.utilization.missing or gpu.usage.figures.utilization is None or oscillation.pattern is Pattern.INSUFFICIENT:
        return None
    is_idle = oscillation.pattern is Pattern.FLAT and oscillation.mean is not None and oscillation.mean < _IDLE
    return ShownVerdict(
        pattern=oscillation.pattern.value,
        low=oscillation.low,
        high=oscillation.high,
        mean=oscillation.mean,
        period_s=oscillation.period_s,
        text=describe(gpu.utilization),
        meaning=_NOTHING_RUNS if is_idle else MEANINGS[oscillation.pattern],
    )
