"""Monitor of GPUs, and of a process that uses them: the readings that are shown."""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from autotune.clock import Clock, Poller
from autotune.daemon.monitor_reading import (
    GpuSummary,
    MonitorReading,
    MonitorSummary,
    ShownGpu,
    ShownProcess,
    ShownVerdict,
)
from autotune.errors import AutotuneError, GpuError
from autotune.measure.gpu.devices import present_gpus, visible_devices
from autotune.measure.gpu.driver import THROTTLING, GpuFacts, is_mig_uuid
from autotune.measure.gpu.process import GpuPoller
from autotune.measure.gpu.samples import (
    STATE_S,
    BusyWindows,
    Capability,
    CapabilityOff,
    GpuState,
    Record,
    StreamStarted,
)
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.usage import DeviceUsage
from autotune.measure.oscillation import Pattern, Segment
from autotune.measure.utilization import LEAST_SAMPLES, MEANINGS, Utilization, describe, pooled_utilization
from autotune.measure.window import main_stream
from autotune.records import TraineeEvent
from autotune.trial.folder import TrialFolder
from autotune.trial.step_files import StepReader

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
    # what prints as 0 %
    is_idle = oscillation.pattern is Pattern.FLAT and oscillation.mean is not None and oscillation.mean < 0.005
    return ShownVerdict(
        pattern=oscillation.pattern.value,
        low=oscillation.low,
        high=oscillation.high,
        mean=oscillation.mean,
        period_s=oscillation.period_s,
        text=describe(gpu.utilization),
        meaning=_NOTHING_RUNS if is_idle else MEANINGS[oscillation.pattern],
    )


_LOOK_S = 5.0  # between looks for the place where it reports its steps
_NO_STEPS = "reports no steps (trials of autotune do)"
_NO_PACE = "no two steps in the last minute"


class MonitoredProcess:
    """A process, its descendants, and its steps.

    Raises:
        AutotuneError: There is no such process, or it has ended.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        self.pid = pid
        self._clock = clock
        self._process = WatchedProcess(pid, clock)
        self._reader: StepReader | None = None
        self._recent = RecentSteps(MINUTE_S)
        self._pace: StepPace | None = None
        self._devices: tuple[str, ...] = ()
        self._look_s = clock.now_s()
        self.read()

    @property
    def has_ended(self) -> bool:
        """True once it is gone."""
        return self._process.has_ended

    @property
    def has_steps(self) -> bool:
        """True if it has a folder where it reports its steps."""
        return self._reader is not None

    @property
    def step_s(self) -> float | None:
        """Mean time of a step over the last minute; None where it is not known."""
        return None if self._pace is None else 1.0 / self._pace.steps_per_s

    def pids(self) -> frozenset[int]:
        """Return its id and those of its descendants, also of those that have ended a short while ago."""
        return self._process.pids()

    def environ(self) -> Mapping[str, str] | None:
        """Return the environment that it was started with; None where that may not be read."""
        return self._process.environ()

    def says_it_uses(self, uuid: str) -> bool:
        """Return True if it reported a GPU as its own: the only way in a container, where process ids differ."""
        return any(uuid.startswith(device) for device in self._devices)

    def read(self) -> None:
        """Read the steps that it reported since the last time."""
        now_s = self._clock.now_s()
        if self._reader is None and now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            folder = self._process.trial_folder()
            self._reader = None if folder is None else StepReader(folder)
        if self._reader is not None:
            events = self._reader.poll()
            self._recent.add(events)
            self._devices += tuple(device for event in events for device in event.devices)
            self._pace = self._recent.pace(now_s)

    def shown(self) -> ShownProcess:
        pace = self._pace
        if pace is None:
            why = _NO_PACE if self.has_steps else _NO_STEPS
            return ShownProcess(pid=self.pid, ended=self.has_ended, why_no_steps=why)
        return ShownProcess(
            pid=self.pid,
            ended=self.has_ended,
            steps_per_s=pace.steps_per_s,
            samples_per_s=pace.samples_per_s,
            data_wait_fraction=pace.data_wait_fraction,
            silent_s=max(0.0, self._clock.now_s() - pace.newest_s),
        )


_COST_SHARE = (
    0.001  # of one core: where a look is expensive, on a machine with thousands of processes, it is made less often
)
_REMEMBERED_S = 120.0
_STEPS = re.compile(r"steps\.[0-9]+\.[0-9]+\.jsonl")


class WatchedProcess:
    """Process and its descendants, read only: no signal is ever sent to them.

    Args:
        clock: Limits the rate of looks.

    Raises:
        AutotuneError: There is no such process, or it has ended.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        self.pid = pid
        self._clock = clock
        self._seen_s: dict[int, float] = {pid: clock.now_s()}
        self._look_s = clock.now_s()
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise AutotuneError(
                f"there is no process {pid}",
                remedy="`ps -ef` lists those there are; in a container they have other numbers than outside.",
            ) from None
        if self.has_ended:
            raise AutotuneError(f"process {pid} has ended", remedy="Name a process that is still running.")

    @property
    def has_ended(self) -> bool:
        """True if it is gone, or a zombie that its parent has not reaped."""
        try:
            # is_running compares the start time: another process may have been given the number since.
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def pids(self) -> frozenset[int]:
        """Return its id and those of all its descendants, including processes that ended in the last minute or two."""
        began_s = self._clock.now_s()
        if began_s >= self._look_s:
            try:
                below = self._process.children(recursive=True)
            except psutil.Error:
                below = []
            now_s = self._clock.now_s()
            self._seen_s |= dict.fromkeys((self.pid, *(child.pid for child in below)), now_s)
            self._seen_s = {pid: seen_s for pid, seen_s in self._seen_s.items() if now_s - seen_s <= _REMEMBERED_S}
            self._look_s = now_s + max(_LOOK_S, (now_s - began_s) / _COST_SHARE)
        return frozenset(self._seen_s)

    def environ(self) -> Mapping[str, str] | None:
        """Return the environment that it was started with; None if that may not be read."""
        try:
            return self._process.environ()
        except (psutil.Error, OSError):
            return None

    def trial_folder(self) -> Path | None:
        """Return the folder of its step files; None if it is no trial of autotune, or does not report any steps yet.

        ``AUTOTUNE_TRIAL_DIR`` names it. A trial that was forked from a zygote has that in its memory only, where
        it is not visible; but it holds its step file open.
        """
        named = (self.environ() or {}).get("AUTOTUNE_TRIAL_DIR")
        if named:
            return Path(named)
        try:
            files = [Path(file.path) for file in self._process.open_files()]
        except (psutil.Error, OSError):
            return None
        folders = (file.parent for file in files if _STEPS.fullmatch(file.name))
        return next((folder for folder in folders if TrialFolder(folder).is_ours()), None)


MINUTE_S = 60.0
"""Stretch of time that the figures and the verdict are about."""

KEPT_S = 1.5 * MINUTE_S
"""Time for which readings are kept; the verdict looks back this far where driver windows are long and so are few."""

_NOW_S = 1.0
_STALE_S = 3.0  # a reading that old says nothing of now
_FIRST_S = 2.0  # for the first reading
_FEW = 4  # GPUs; more are looked at half as often, so that to watch them takes less than 0.5 % of a core


# A little more than the second after which everything is due, so that all GPUs are read at once. The driver keeps its
# samples for 16 s; only a device that keeps none has to be read as often as it wants.
_LATE_S = 0.01
_POLLED_S = 0.05


@dataclass(frozen=True, kw_only=True)
class GpuNow:
    """One GPU at the moment of a look.

    Attributes:
        trouble: Reason, for people, why it gives no readings now; None while it does.
        busy: Share of the newest second, 0..1, in which a kernel ran; None where that is not known.
        state: The newest reading of everything else; None if that is too old to be called now.
        utilization: Verdict on the last minute, 20 s old at most.
    """

    trouble: str | None
    busy: float | None
    state: GpuState | None
    usage: DeviceUsage
    utilization: Utilization


class GpuWatch:
    """Poller of GPUs in a thread until `close`; looks again for a driver that was lost.

    A driver call that hangs does so in that thread, which is then left to the end of the process: nothing here waits
    for it.

    Args:
        uuids: The devices, at least one; MIG instances are allowed.
        clock: Stamps and paces the readings.
        by_process: True to tell kernels apart by process, which costs as much as all else.

    Attributes:
        driver: The driver's version; empty where it does not say, and before the first reading.
    """

    def __init__(self, uuids: Sequence[str], clock: Clock, *, by_process: bool = False) -> None:
        self._uuids = tuple(uuids)
        self._clock = clock
        self._left_out = _left_out(self._uuids, by_process=by_process)
        self._every_s = look_every_s(len(self._uuids))
        began_s = clock.now_s()
        self.driver = ""
        self._readings = GpuTimeline(uuids, since_s=began_s)
        self._states: dict[str, GpuState] = {}
        self._totals = {uuid: GpuTotals(since_s=began_s) for uuid in self._uuids}
        self._judged: dict[str, tuple[float, Utilization]] = {}
        self._poller = self._new_poller()
        self._polls = False
        self._has_read = threading.Event()
        self._thread = Poller(self._read, name="gpu-watch")

    def start(self) -> None:
        """Start the readings; return with the first one, or without it after two seconds."""
        self._thread.start()
        self._has_read.wait(_FIRST_S)

    def close(self) -> None:
        """End the readings and close the driver."""
        if self._thread.stop(deadline_s=_NOW_S):  # else a call hangs, and still uses the driver
            self._poller.close()

    def totals(self, uuid: str) -> GpuTotals:
        """Return the totals of a device over all the time it was watched."""
        return self._totals[uuid]

    def look(self, *, own_pids: Collection[int] = (), step_s: float | None = None) -> dict[str, GpuNow]:
        """Return the devices as they are now, by UUID.

        Args:
            own_pids: Processes whose kernels are not called foreign; also those that have ended.
        """
        now_s = self._clock.now_s()
        self._readings.forget(now_s - KEPT_S)
        minute = self._readings.between(now_s - MINUTE_S, now_s, own_pids=own_pids)
        silence = self._readings.availability.silence(now_s, start_s=_STALE_S, record_s=_STALE_S)
        found = {}
        for usage in minute.devices:
            state = self._states.get(usage.figures.uuid)
            losses = self._readings.availability.losses([usage.figures.uuid])
            found[usage.figures.uuid] = GpuNow(
                trouble=losses[0].why.removeprefix(f"{usage.figures.uuid}: ") if losses else silence,
                busy=None if usage.figures.utilization is None else _newest(usage, now_s),
                state=state if state is not None and now_s - state.t_s <= _STALE_S else None,
                usage=usage,
                utilization=self._judge(usage, now_s, step_s),
            )
        return found

    def _judge(self, usage: DeviceUsage, now_s: float, step_s: float | None) -> Utilization:
        judged_s, judged = self._judged.get(usage.figures.uuid, (-math.inf, None))
        # a verdict takes some milliseconds: more than all else of a look
        if judged is None or judged.missing or now_s - judged_s >= 10 * self._every_s:
            windows = usage.windows
            if len(windows) < LEAST_SAMPLES:
                longer = {
                    device.figures.uuid: device for device in self._readings.between(now_s - KEPT_S, now_s).devices
                }
                windows = longer[usage.figures.uuid].windows[-LEAST_SAMPLES:]
            since_s, until_s = usage.t0_s, now_s
            if windows:  # the driver may have begun to tell only now, and may be late by some windows
                since_s = windows[0][0] - windows[0][1]
                until_s = max(windows[-1][0], now_s - _STALE_S)
            judged = pooled_utilization([Segment.within(since_s, until_s, windows)], step_s=step_s)
            self._judged[usage.figures.uuid] = (now_s, judged)
        return judged

    def _new_poller(self) -> GpuPoller:
        return GpuPoller(self._uuids, self._take, self._clock, left_out=self._left_out)

    def _read(self) -> float:
        wait_s = self._poller.step()
        self._has_read.set()
        if wait_s is None:  # the driver is gone; perhaps it is being replaced
            self._poller.close()
            self._poller = self._new_poller()
            return 5.0  # until a driver that was lost is asked again
        return max(wait_s, _POLLED_S if self._polls else self._every_s + _LATE_S)

    def _take(self, record: Record) -> None:
        self._readings.add(record)
        match record:
            case StreamStarted():
                self.driver = record.driver
            case CapabilityOff(capability=Capability.SAMPLES):
                self._polls = True
            case GpuState():
                self._states[record.uuid] = record
            case _:
                pass
        uuid = getattr(record, "uuid", None)
        if uuid is not None:
            self._totals[uuid].keep(record)


def look_every_s(gpus: int) -> float:
    """Return the seconds between two looks at so many GPUs."""
    return STATE_S if gpus <= _FEW else 2 * STATE_S


def _left_out(uuids: Sequence[str], *, by_process: bool) -> frozenset[Capability]:
    processes = () if by_process else (Capability.HOLDERS, Capability.SHARES)
    # The activity of its units is all that is known of an instance of a GPU; of others there is utilization.
    units = () if any(map(is_mig_uuid, uuids)) else (Capability.ACTIVITY,)
    return frozenset((*processes, *units))


def _newest(usage: DeviceUsage, now_s: float) -> float | None:
    """Return the utilization of the newest second; windows may end a second ago, and be a second long."""
    if not usage.windows or now_s - usage.windows[-1][0] > _STALE_S:
        return None
    since_s = usage.windows[-1][0] - _NOW_S
    recent = [(length_s, busy) for end_s, length_s, busy in usage.windows if end_s > since_s]
    return math.fsum(length_s * busy for length_s, busy in recent) / math.fsum(length_s for length_s, _ in recent)


@dataclass(frozen=True, kw_only=True)
class StepPace:
    """Pace of a training loop over a past stretch of time.

    Attributes:
        steps_per_s: Steps per second, from the first step of the stretch to the last.
        samples_per_s: Samples per second; None where a step does not say how many samples it had.
        data_wait_fraction: Share of the time, 0..1, in which the loop waited for data; None where steps do not say.
        newest_s: Monotonic time of the last step.
    """

    steps_per_s: float
    samples_per_s: float | None
    data_wait_fraction: float | None
    newest_s: float


class RecentSteps:
    """Steps of the last stretch of time; no warm-up is cut, since nothing is compared with it."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._steps: list[TraineeEvent] = []

    def add(self, events: Sequence[TraineeEvent]) -> None:
        """Add events, in order of time; only steps count."""
        self._steps += [event for event in events if event.kind == "step"]

    def pace(self, now_s: float) -> StepPace | None:
        """Return the pace of the busiest loop; None with fewer than two steps in the stretch up to ``now_s``."""
        del self._steps[: bisect_left(self._steps, now_s - self._length_s, key=lambda step: step.t_s)]
        stream = main_stream(self._steps)
        steps = [step for step in self._steps if step.stream == stream]
        if len(steps) < 2 or steps[-1].t_s <= steps[0].t_s:
            return None
        first, *rest = steps
        length_s = rest[-1].t_s - first.t_s
        samples = [step.samples for step in rest if step.samples is not None]
        waits_s = [step.wait_s for step in rest if step.wait_s is not None]
        return StepPace(
            steps_per_s=len(rest) / length_s,
            samples_per_s=math.fsum(samples) / length_s if len(samples) == len(rest) else None,
            data_wait_fraction=min(1.0, math.fsum(waits_s) / length_s) if len(waits_s) == len(rest) else None,
            newest_s=rest[-1].t_s,
        )


_ROUNDING_S = 1e-3


class GpuTotals:
    """Totals of the records of one device, in constant memory.

    Args:
        since_s: Driver windows from before that time do not count.

    Attributes:
        peak_memory_bytes: Most memory in use by all processes, of a reading every second or two; None before the
            first.
        highest_temperature_c: Highest of the readings; None before the first.
    """

    def __init__(self, *, since_s: float) -> None:
        self._newest_s = since_s
        self._covered_s = self._busy_s = 0.0
        self._polled = False
        self._power_w = _Mean()
        self._throttled = _Mean()
        self.peak_memory_bytes: int | None = None
        self.highest_temperature_c: int | None = None

    @property
    def utilization(self) -> float | None:
        """Share of the time, 0..1, in which a kernel ran; None if not known. Polled zeros are not believed."""
        if not self._covered_s or (self._polled and not self._busy_s):
            return None
        return min(1.0, self._busy_s / self._covered_s)

    @property
    def power_w(self) -> float | None:
        """Mean of the readings of its electric power."""
        return self._power_w.value

    @property
    def throttled_fraction(self) -> float | None:
        """Share of the readings that show throttling, see `throttling`."""
        return self._throttled.value

    def keep(self, record: Record) -> None:
        """Add a record of this device."""
        if isinstance(record, BusyWindows):
            self._polled = record.source == Capability.RATES
            # A device that came back tells its ring again.
            for end_s, length_s, busy in record.windows:
                if end_s - length_s >= self._newest_s - _ROUNDING_S:
                    self._newest_s = end_s
                    self._covered_s += length_s
                    self._busy_s += length_s * busy
        elif isinstance(record, GpuState):
            self.peak_memory_bytes = _larger(self.peak_memory_bytes, record.memory_bytes)
            self.highest_temperature_c = _larger(self.highest_temperature_c, record.temperature_c)
            self._power_w.add(record.power_w)
            if record.reasons is not None:
                self._throttled.add(float(not THROTTLING.isdisjoint(record.reasons)))


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self._sum, self._count = self._sum + value, self._count + 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
