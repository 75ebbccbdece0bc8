"""Monitor of GPUs, and of a process that uses them: its readings, its summary, and their JSON objects.

Shares are 0..1, absent is None.
"""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import psutil

from autotune.clock import Clock, Poller
from autotune.errors import AutotuneError, GpuError
from autotune.measure.gpu.collector import GpuPoller
from autotune.measure.gpu.devices import present_gpus, visible_devices
from autotune.measure.gpu.driver import THROTTLING, GpuFacts, is_mig_uuid
from autotune.measure.gpu.records import (
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
from autotune.measure.window import main_stream, steady_window
from autotune.records import TraineeEvent
from autotune.trial.folder import TrialFolder
from autotune.trial.step_files import StepReader

FORMAT = 1
"""Version of the objects that ``monitor --json`` prints, one a line."""

MINUTE_S = 60.0
"""Stretch of time that the figures and the verdict are about."""

_SHOWN = (Capability.MEMORY, Capability.POWER, Capability.TEMPERATURE, Capability.CLOCK, Capability.REASONS)


@dataclass(frozen=True, kw_only=True)
class ShownVerdict:
    """Verdict on the utilization of the last minute.

    Attributes:
        pattern: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        low: Level of the lower driver windows.
        high: Level of the upper ones.
        mean: Average over the time that the windows cover.
        period_s: Length of a cycle; None unless the pattern is ``cyclic``.
        meaning: Usual cause of the pattern, and its usual remedy.
    """

    pattern: str
    low: float | None
    high: float | None
    mean: float | None
    period_s: float | None
    text: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class ShownGpu:
    """One GPU, or one instance of a GPU in MIG mode, at one moment.

    Attributes:
        trouble: Reason why it gives no readings at this moment; None while it does.
        utilization: Share of the newest second in which a kernel ran.
        minute_utilization: The same of the last minute.
        why_no_utilization: Reason, for people, why there is no utilization; None where there is.
        memory_used_bytes: Memory in use by all processes now.
        clock_reasons: Reasons for which its clocks are held down now; empty if there are none.
        throttled_fraction: Share of the last minute in which one of `throttle_reasons` was among them.
        own_fraction: Share of the last minute in which kernels of the process ran; None where none is watched.
        sm_activity: Of the multiprocessors; asked for instances of GPUs alone, of which there is no utilization.
        absent: Readings that the device never gives, with the reason, for people.
        verdict: None while there is not enough to judge by; then `why_no_verdict` names what is missing.
        windows: End, length and busy share of each driver window of the last minute.
    """

    label: str
    uuid: str
    name: str
    trouble: str | None = None
    utilization: float | None = None
    minute_utilization: float | None = None
    why_no_utilization: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    throttled_fraction: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    own_fraction: float | None = None
    foreign_fraction: float | None = None
    sm_activity: float | None = None
    absent: tuple[str, ...] = ()
    verdict: ShownVerdict | None = None
    why_no_verdict: str | None = None
    windows: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class GpuSummary:
    """Summary of one GPU over all the time it was watched; the verdict is that on the last minute."""

    label: str
    uuid: str
    name: str
    utilization: float | None
    peak_memory_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    highest_temperature_c: int | None
    throttled_fraction: float | None
    why_no_utilization: str | None
    verdict: ShownVerdict | None
    trouble: str | None


@dataclass(frozen=True, kw_only=True)
class ShownProcess:
    """Process that was asked for, and the pace of its busiest loop over the last minute if it reports any steps.

    Attributes:
        samples_per_s: None where a step does not say how many samples it had.
        data_wait_fraction: Share of the time that its loop waited for data; None where steps do not say.
        stall_fraction: Share of the time that long steps took beyond usual ones; None before it can be told.
        silent_s: Time since its newest step; None where no step is known.
        why_no_steps: Reason, for people, why no pace is known; None where it is.
    """

    pid: int
    ended: bool = False
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    data_wait_fraction: float | None = None
    stall_fraction: float | None = None
    silent_s: float | None = None
    why_no_steps: str | None = None


@dataclass(frozen=True, kw_only=True)
class MonitorReading:
    """Reading of a monitor at one moment.

    Attributes:
        driver: Version of the driver; empty where it does not say.
        process: The process that was asked for; None if all GPUs are watched.
        notes: Sentences, for people, on the choice of these GPUs.
    """

    t_s: float
    utc: datetime
    watched_s: float
    driver: str = ""
    gpus: tuple[ShownGpu, ...]
    process: ShownProcess | None = None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return its JSON object."""
        gpus = [{name: value for name, value in asdict(gpu).items() if name != "windows"} for gpu in self.gpus]
        return {**_document("reading", self), "driver": self.driver or None, "notes": self.notes, "gpus": gpus}


@dataclass(frozen=True, kw_only=True)
class MonitorSummary:
    """Summary of a monitor at its end."""

    t_s: float
    utc: datetime
    watched_s: float
    gpus: tuple[GpuSummary, ...]
    process: ShownProcess | None

    def document(self) -> dict[str, Any]:
        """Return its JSON object, the last line."""
        return {**_document("summary", self), "gpus": [asdict(gpu) for gpu in self.gpus]}


def _document(kind: str, moment: MonitorReading | MonitorSummary) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": kind,
        "utc": moment.utc.isoformat(timespec="milliseconds"),
        "monotonic_s": round(moment.t_s, 3),
        "watched_s": round(moment.watched_s, 3),
        "process": None if moment.process is None else asdict(moment.process),
    }


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
        self._process = None if pid is None else WatchedProcess(pid, clock)
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

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def has_ended(self) -> bool:
        """True once the process that was asked for is gone."""
        return self._process is not None and self._process.has_ended

    @property
    def every_s(self) -> float:
        """Seconds between two readings that differ."""
        return _look_every_s(len(self._labels))

    def reading(self) -> MonitorReading:
        """Return the reading of this moment.

        Raises:
            GpuError: The process uses no GPU, and reports no steps.
        """
        gpus = self._look()
        is_owned = self._process is not None
        return MonitorReading(
            **self._moment(),
            driver="" if self._watch is None else self._watch.driver,
            gpus=tuple(_shown(self._labels[uuid], gpu, is_owned=is_owned) for uuid, gpu in gpus.items()),
            notes=(*self._silent, *(() if self._used else self._notes)),
        )

    def summary(self) -> MonitorSummary:
        """Return the summary of all the time that was watched."""
        gpus = tuple(self._summarized(uuid, gpu) for uuid, gpu in self._look().items())
        return MonitorSummary(**self._moment(), gpus=gpus)

    def _moment(self) -> dict[str, Any]:
        now_s = self._clock.now_s()
        process = None if self._process is None else self._process.shown()
        return {"t_s": now_s, "utc": self._clock.utc(), "watched_s": now_s - self._began_s, "process": process}

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
        further = (f"{note}." for note in (visible.cut, visible.assumed) if note)
        return visible.uuids, (f"{unknown} (yet); {those} are shown.", *further)

    def _look(self) -> Mapping[str, GpuNow]:
        """Return the devices that are shown, by UUID."""
        if self._process is not None:
            self._process.read_steps()
        if self._watch is None or self._process is None:
            return {} if self._watch is None else self._watch.look()
        own = self._process.pids()
        found = self._watch.look(own_pids=own, step_s=self._process.step_s)
        holders = {uuid: (gpu.state and gpu.state.holders) or () for uuid, gpu in found.items()}
        held = tuple(uuid for uuid, those in holders.items() if any(pid in own for pid, _, _ in those))
        reported = tuple(uuid for uuid in found if self._process.says_it_uses(uuid))
        self._used = held or self._used or reported  # once known it stays: the driver may be lost for a while
        shown = self._used or self._candidates
        if not shown and not self._process.has_steps:
            raise GpuError(self._notes[0].removesuffix("."), remedy="Without --pid all GPUs of the machine are shown.")
        return {uuid: found[uuid] for uuid in shown}

    def _summarized(self, uuid: str, gpu: GpuNow) -> GpuSummary:
        assert self._watch is not None
        totals, figures = self._watch.totals[uuid], gpu.usage.figures
        return GpuSummary(
            label=self._labels[uuid],
            uuid=uuid,
            name=figures.name,
            # Within the first second nothing new is known, but what the driver remembered.
            utilization=figures.utilization if totals.utilization is None else totals.utilization,
            peak_memory_bytes=totals.peak_memory_bytes,
            memory_total_bytes=figures.memory_total_bytes,
            power_w=totals.power_w,
            highest_temperature_c=totals.highest_temperature_c,
            throttled_fraction=totals.throttled_fraction,
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


def _shown(label: str, gpu: GpuNow, *, is_owned: bool) -> ShownGpu:
    usage, figures, verdict = gpu.usage, gpu.usage.figures, _verdict(gpu)
    state = gpu.state or GpuState(t_s=usage.t1_s, uuid=figures.uuid)
    return ShownGpu(
        label=label,
        uuid=figures.uuid,
        name=figures.name,
        trouble=gpu.trouble,
        utilization=gpu.busy,
        minute_utilization=figures.utilization,
        why_no_utilization=usage.why_no_utilization,
        memory_used_bytes=state.memory_bytes,
        memory_total_bytes=figures.memory_total_bytes,
        power_w=state.power_w,
        temperature_c=state.temperature_c,
        sm_clock_mhz=state.sm_clock_mhz,
        clock_reasons=state.reasons,
        throttled_fraction=figures.throttled_fraction,
        throttle_reasons=tuple(sorted(usage.clock_reasons.keys() & THROTTLING)),
        own_fraction=figures.own_fraction if is_owned else None,
        foreign_fraction=figures.foreign_fraction if is_owned else None,
        sm_activity=figures.sm_activity,
        absent=tuple(f"{what} ({usage.absent[what]})" for what in _SHOWN if what in usage.absent),
        verdict=verdict,
        why_no_verdict=describe(gpu.utilization) if verdict is None and figures.utilization is not None else None,
        windows=usage.windows,
    )


def _verdict(gpu: GpuNow) -> ShownVerdict | None:
    found = gpu.utilization.oscillation
    if gpu.utilization.missing or gpu.usage.figures.utilization is None or found.pattern is Pattern.INSUFFICIENT:
        return None
    is_idle = found.pattern is Pattern.FLAT and found.mean is not None and found.mean < 0.005  # what prints as 0 %
    return ShownVerdict(
        pattern=found.pattern.value,
        low=found.low,
        high=found.high,
        mean=found.mean,
        period_s=found.period_s,
        text=describe(gpu.utilization),
        meaning="next to nothing runs on it" if is_idle else MEANINGS[found.pattern],
    )


_LOOK_S = 5.0  # between looks for the place where it reports its steps, and for its descendants


class WatchedProcess:
    """A process, its descendants, and its steps, read only: no signal is ever sent to them.

    Raises:
        AutotuneError: There is no such process, or it has ended.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        self.pid = pid
        self._clock = clock
        self._seen_s: dict[int, float] = {pid: clock.now_s()}
        self._pids_due_s = self._folder_due_s = clock.now_s()
        self._reader: StepReader | None = None
        self._steps: list[TraineeEvent] = []
        self._devices: tuple[str, ...] = ()
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise AutotuneError(
                f"there is no process {pid}",
                remedy="`ps -ef` lists those there are; in a container they have other numbers than outside.",
            ) from None
        if self.has_ended:
            raise AutotuneError(f"process {pid} has ended", remedy="Name a process that is still running.")
        self.read_steps()

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
        if began_s >= self._pids_due_s:
            try:
                below = self._process.children(recursive=True)
            except psutil.Error:
                below = []
            now_s = self._clock.now_s()
            self._seen_s |= dict.fromkeys((self.pid, *(child.pid for child in below)), now_s)
            self._seen_s = {pid: seen_s for pid, seen_s in self._seen_s.items() if now_s - seen_s <= 2 * MINUTE_S}
            # Where a look is expensive, on a machine with thousands of processes, it takes 0.1 % of a core at most.
            self._pids_due_s = now_s + max(_LOOK_S, (now_s - began_s) * 1000)
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
        if named := (self.environ() or {}).get("AUTOTUNE_TRIAL_DIR"):
            return Path(named)
        try:
            files = [Path(file.path) for file in self._process.open_files()]
        except (psutil.Error, OSError):
            return None
        folders = (file.parent for file in files if re.fullmatch(r"steps\.[0-9]+\.[0-9]+\.jsonl", file.name))
        return next((folder for folder in folders if TrialFolder(folder).is_ours()), None)

    @property
    def has_steps(self) -> bool:
        """True if it has a folder where it reports its steps."""
        return self._reader is not None

    @property
    def step_s(self) -> float | None:
        """Mean time of a step over the last minute; None where it is not known."""
        pace = pace_of(self._steps)
        return None if pace is None else 1.0 / pace["steps_per_s"]

    def says_it_uses(self, uuid: str) -> bool:
        """Return True if it reported a GPU as its own: the only way in a container, where process ids differ."""
        return any(uuid.startswith(device) for device in self._devices)

    def read_steps(self) -> None:
        """Read the steps that it reported since the last time; those of the last minute are kept."""
        now_s = self._clock.now_s()
        if self._reader is None and now_s >= self._folder_due_s:
            self._folder_due_s = now_s + _LOOK_S
            folder = self.trial_folder()
            self._reader = None if folder is None else StepReader(folder)
        events = self._reader.poll() if self._reader is not None else []
        self._steps += [event for event in events if event.kind == "step"]
        self._devices += tuple(device for event in events for device in event.devices)
        del self._steps[: bisect_left(self._steps, now_s - MINUTE_S, key=lambda step: step.t_s)]

    def shown(self) -> ShownProcess:
        pace = pace_of(self._steps)
        if pace is None:
            why = "no two steps in the last minute" if self.has_steps else "reports no steps (trials of autotune do)"
            return ShownProcess(pid=self.pid, ended=self.has_ended, why_no_steps=why)
        silent_s = max(0.0, self._clock.now_s() - self._steps[-1].t_s)
        window = steady_window(self._steps)
        stalls = None if window is None else window.stalls().fraction
        return ShownProcess(pid=self.pid, ended=self.has_ended, silent_s=silent_s, stall_fraction=stalls, **pace)


def pace_of(steps: Sequence[TraineeEvent]) -> dict[str, Any] | None:
    """Return the pace of the busiest loop among steps, as `ShownProcess` has it; None with fewer than two."""
    stream = main_stream(steps)
    own = [step for step in steps if step.stream == stream]
    if len(own) < 2 or own[-1].t_s <= own[0].t_s:
        return None
    first, *rest = own
    length_s = rest[-1].t_s - first.t_s
    samples = [step.samples for step in rest if step.samples is not None]
    waits_s = [step.wait_s for step in rest if step.wait_s is not None]
    return {
        "steps_per_s": len(rest) / length_s,
        "samples_per_s": math.fsum(samples) / length_s if len(samples) == len(rest) else None,
        "data_wait_fraction": min(1.0, math.fsum(waits_s) / length_s) if len(waits_s) == len(rest) else None,
    }


_KEPT_S = 1.5 * MINUTE_S  # the verdict looks back this far where driver windows are long and so are few
_STALE_S = 3.0  # a reading that old says nothing of now


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
        totals: Totals of each device over all the time it was watched.
    """

    def __init__(self, uuids: Sequence[str], clock: Clock, *, by_process: bool = False) -> None:
        self._uuids = tuple(uuids)
        self._clock = clock
        processes = () if by_process else (Capability.HOLDERS, Capability.SHARES)
        # The activity of its units is all that is known of an instance of a GPU; of others there is utilization.
        units = () if any(map(is_mig_uuid, uuids)) else (Capability.ACTIVITY,)
        self._left_out = frozenset((*processes, *units))
        self._every_s = _look_every_s(len(self._uuids))
        self.driver = ""
        self.totals = {uuid: GpuTotals(since_s=clock.now_s()) for uuid in self._uuids}
        self._readings = GpuTimeline(uuids, since_s=clock.now_s())
        self._states: dict[str, GpuState] = {}
        self._judged: dict[str, tuple[float, Utilization]] = {}
        self._poller = self._new_poller()
        self._polls = False
        self._has_read = threading.Event()
        self._thread = Poller(self._read, name="gpu-watch")

    def start(self) -> None:
        """Start the readings; return with the first one, or without it after two seconds."""
        self._thread.start()
        self._has_read.wait(2.0)

    def close(self) -> None:
        """End the readings and close the driver."""
        if self._thread.stop(deadline_s=1.0):  # else a call hangs, and still uses the driver
            self._poller.close()

    def look(self, *, own_pids: Collection[int] = (), step_s: float | None = None) -> dict[str, GpuNow]:
        """Return the devices as they are now, by UUID.

        Args:
            own_pids: Processes whose kernels are not called foreign; also those that have ended.
        """
        now_s = self._clock.now_s()
        self._readings.forget(now_s - _KEPT_S)
        silence = self._readings.availability.silence(now_s, start_s=_STALE_S, record_s=_STALE_S)
        found = {}
        for usage in self._readings.between(now_s - MINUTE_S, now_s, own_pids=own_pids).devices:
            uuid = usage.figures.uuid
            state = self._states.get(uuid)
            losses = self._readings.availability.losses([uuid])
            found[uuid] = GpuNow(
                trouble=losses[0].why.removeprefix(f"{uuid}: ") if losses else silence,
                busy=None if usage.figures.utilization is None else _newest(usage, now_s),
                state=state if state is not None and now_s - state.t_s <= _STALE_S else None,
                usage=usage,
                utilization=self._judge(usage, now_s, step_s),
            )
        return found

    def _judge(self, usage: DeviceUsage, now_s: float, step_s: float | None) -> Utilization:
        uuid = usage.figures.uuid
        judged_s, judged = self._judged.get(uuid, (-math.inf, None))
        # a verdict takes some milliseconds: more than all else of a look
        if judged is None or judged.missing or now_s - judged_s >= 10 * self._every_s:
            windows = usage.windows
            if len(windows) < LEAST_SAMPLES:
                longer = self._readings.between(now_s - _KEPT_S, now_s).devices
                windows = next(one.windows for one in longer if one.figures.uuid == uuid)[-LEAST_SAMPLES:]
            since_s, until_s = usage.t0_s, now_s
            if windows:  # the driver may have begun to tell only now, and may be late by some windows
                since_s, until_s = windows[0][0] - windows[0][1], max(windows[-1][0], now_s - _STALE_S)
            judged = pooled_utilization([Segment.within(since_s, until_s, windows)], step_s=step_s)
            self._judged[uuid] = (now_s, judged)
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
        # A little more than the second after which everything is due, so that all GPUs are read at once. The driver
        # keeps its samples for 16 s; only a device that keeps none has to be read as often as it wants.
        return max(wait_s, 0.05 if self._polls else self._every_s + 0.01)

    def _take(self, record: Record) -> None:
        self._readings.add(record)
        match record:
            case StreamStarted():
                self.driver = record.driver
            case CapabilityOff(capability=Capability.SAMPLES):
                self._polls = True
            case GpuState():
                self._states[record.uuid] = record
                self.totals[record.uuid].add_state(record)
            case BusyWindows():
                self.totals[record.uuid].add_windows(record)
            case _:
                pass


def _look_every_s(gpus: int) -> float:
    """Return the seconds between two looks at so many GPUs: to watch many takes less than 0.5 % of a core, too."""
    return STATE_S if gpus <= 4 else 2 * STATE_S


def _newest(usage: DeviceUsage, now_s: float) -> float | None:
    """Return the utilization of the newest second; windows may end a second ago, and be a second long."""
    if not usage.windows or now_s - usage.windows[-1][0] > _STALE_S:
        return None
    since_s = usage.windows[-1][0] - 1.0
    recent = [(length_s, busy) for end_s, length_s, busy in usage.windows if end_s > since_s]
    return math.fsum(length_s * busy for length_s, busy in recent) / math.fsum(length_s for length_s, _ in recent)


class GpuTotals:
    """Totals of the records of one device, in constant memory.

    Args:
        since_s: Driver windows from before that time do not count.

    Attributes:
        peak_memory_bytes: Most memory in use by all processes, of a reading every second or two.
    """

    def __init__(self, *, since_s: float) -> None:
        self._newest_s = since_s
        self._covered_s = self._busy_s = 0.0
        self._polled = False
        self._power, self._throttled = (0.0, 0), (0.0, 0)
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
        return _mean(self._power)

    @property
    def throttled_fraction(self) -> float | None:
        """Share of the readings that show throttling, see `THROTTLING`."""
        return _mean(self._throttled)

    def add_windows(self, record: BusyWindows) -> None:
        """Add driver windows; a device that came back tells its ring again."""
        self._polled = record.source == Capability.RATES
        for end_s, length_s, busy in record.windows:
            if end_s - length_s >= self._newest_s - 1e-3:  # of rounding
                self._newest_s = end_s
                self._covered_s += length_s
                self._busy_s += length_s * busy

    def add_state(self, record: GpuState) -> None:
        """Add a reading of all else."""
        self.peak_memory_bytes = _largest((self.peak_memory_bytes, record.memory_bytes))
        self.highest_temperature_c = _largest((self.highest_temperature_c, record.temperature_c))
        if record.power_w is not None and math.isfinite(record.power_w):
            self._power = self._power[0] + record.power_w, self._power[1] + 1
        if record.reasons is not None:
            is_throttled = not THROTTLING.isdisjoint(record.reasons)
            self._throttled = self._throttled[0] + is_throttled, self._throttled[1] + 1


def _mean(sums: tuple[float, int]) -> float | None:
    return sums[0] / sums[1] if sums[1] else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
