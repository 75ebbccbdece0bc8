"""Timeline of GPUs: the collector's records, and the usage over a stretch of time."""

import math
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, pairwise

import numpy as np

from autotune.measure.gpu.driver import THROTTLING
from autotune.measure.gpu.records import (
    STATE_S,
    BusyWindow,
    BusyWindows,
    Capability,
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    ProcessShares,
    Record,
    StreamStarted,
    UnitActivity,
)
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.measure.statistics import weighted_mean
from autotune.records import GpuConditions, GpuFigures, GpuMeasurement, GpuRole, Scalar, Validity

MOST_FOREIGN = 0.01
"""Share of time with kernels of other processes above which a trial is contaminated."""

MOST_THROTTLED = 0.1
"""Share of throttled readings above which a trial is throttled; changes of clocks also set such a bit."""


class KernelAttribution(StrEnum):
    """Method that separated a trial's kernels from those of other processes."""

    BY_PROCESS = "by process id"
    BY_ARRIVAL = "by who came after the start"  # in a container; includes other processes that came then
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class DeviceUsage:
    """Usage of one GPU over a stretch of time. Shares are 0..1 of that time; None is unknown, never 0.

    Attributes:
        figures: Polled utilization of 0 is ignored: some devices without a meter always answer 0 (NVIDIA Thor, seen by
            the authors of rezolus). Memory is of one reading per second, up to the first after the stretch.
        windows: Driver windows wholly inside, as for `utilization.Segment.within`.
        clock_reasons: Share of the readings with each reason, throttling or not.
        foreign_pids: Other processes whose kernels ran, by the driver's ids.
        absent: Capabilities that the device never gives, with reasons.
        lost: One of `driver.FATAL_NAMES`, if it was lost.
    """

    figures: GpuFigures
    t0_s: float
    windows: Sequence[BusyWindow] = ()
    sm_clock_mhz: float | None = None
    temperature_start_c: int | None = None
    temperature_end_c: int | None = None
    clock_reasons: Mapping[str, float] = field(default_factory=dict)
    foreign_pids: tuple[int, ...] = ()
    attribution: KernelAttribution = KernelAttribution.UNKNOWN
    absent: Mapping[str, str] = field(default_factory=dict)
    lost: str | None = None

    @property
    def why_never_measured(self) -> str | None:
        """Reason, for users, why no trial can get its utilization; None if unknown."""
        why = self.absent.get(Capability.RATES)
        return None if why is None else f"{self.figures.name}: does not report utilization ({why})"

    @property
    def why_no_utilization(self) -> str | None:
        if self.lost:
            return f"{self.figures.name}: {self.lost}"
        if self.figures.utilization is not None:
            return None
        if self.why_never_measured:
            only = "; its unit activity is known" if self.figures.sm_activity is not None else ""
            return f"{self.why_never_measured}{only}"
        if self.windows:
            return f"{self.figures.name}: reports 0 % throughout, like devices that don't measure it"
        return f"{self.figures.name}: no driver window lies wholly in this time"


@dataclass(frozen=True, kw_only=True)
class DevicesUsage:
    """Usage of a trial's GPUs over a stretch of time.

    Attributes:
        devices: In the order in which the trial sees them.
        driver: Version of the driver; may be empty.
        lost: Sentence on the loss of the driver.
    """

    devices: tuple[DeviceUsage, ...]
    driver: str = ""
    lost: str | None = None

    @property
    def readings(self) -> dict[str, Scalar]:
        found: dict[str, Scalar] = {}
        for place, device in enumerate(self.devices):
            found |= {
                f"gpu{place}.name": device.figures.name,
                f"gpu{place}.sm_clock_mhz": device.sm_clock_mhz,
                f"gpu{place}.temperature_start_c": device.temperature_start_c,
                f"gpu{place}.temperature_end_c": device.temperature_end_c,
                f"gpu{place}.throttled_fraction": device.figures.throttled_fraction,
                f"gpu{place}.clock_reasons": ", ".join(sorted(device.clock_reasons)) or None,
                f"gpu{place}.foreign_fraction": device.figures.foreign_fraction,
                f"gpu{place}.attribution": device.attribution.value,
            }
        return found


def _sum(values: Iterable[float | None]) -> float | None:
    every = list(values)
    known = [value for value in every if value is not None]
    return math.fsum(known) if every and len(known) == len(every) else None


LEAST_COVERED = 0.5
"""Share of the window that driver windows must cover for a trial to have a utilization."""


def usage_of_trial(usage: DevicesUsage, trial: TrialGpus, trouble: str | None = None) -> GpuUsage:
    """Condense the usage of the GPUs that a trial may use over its window; those that it did not use are not scored.

    Args:
        trouble: Reason, for users, why the collector is silent.
    """
    used = [device for device in usage.devices if trial.reported or _works(device)] or list(usage.devices)
    has_model = trial.model is not None and trial.model < len(usage.devices)
    scored = [usage.devices[trial.model]] if trial.model is not None and has_model else used
    why_none = usage.lost or _why_none(scored)
    if why_none and trouble:
        why_none = trouble
    busy = _sum(device.figures.utilization for device in scored)
    roles = _roles(trial, len(usage.devices))
    spoiled, how = _spoiled(used)
    memory = [
        device.figures.peak_memory_bytes for device in usage.devices if device.figures.peak_memory_bytes is not None
    ]
    return GpuUsage(
        utilization=None if why_none or busy is None else busy / len(scored),
        peak_memory_bytes=max(memory, default=None),
        power_w=_sum(device.figures.power_w for device in used),
        devices=tuple(
            _measurement(device, scored=device in scored, role=roles.get(place))
            for place, device in enumerate(usage.devices)
        ),
        spoiled=spoiled,
        remark="; ".join(part for part in (why_none and f"GPU utilization not measured: {why_none}", how) if part),
        conditions=GpuConditions(driver=usage.driver or None, readings=usage.readings, not_measured=why_none),
    )


def pooled_usage(nodes: Sequence[GpuUsage]) -> GpuUsage:
    """Pool the usage of the GPUs of a training's nodes, at least one; the conditions are the first node's."""
    if len(nodes) == 1:
        return nodes[0]
    scored = [sum(device.scored for device in node.devices) for node in nodes]
    shares = zip(scored, (node.utilization for node in nodes), strict=True)
    busy = _sum(None if share is None else count * share for count, share in shares)
    memory = [node.peak_memory_bytes for node in nodes if node.peak_memory_bytes is not None]
    return GpuUsage(
        utilization=None if busy is None else busy / sum(scored),
        peak_memory_bytes=max(memory, default=None),
        power_w=_sum(node.power_w for node in nodes),
        devices=tuple(device for node in nodes for device in node.devices),
        spoiled=next((node.spoiled for node in nodes if node.spoiled), None),
        remark="; ".join(dict.fromkeys(node.remark for node in nodes if node.remark)),
        conditions=nodes[0].conditions,
    )


def _works(device: DeviceUsage) -> bool:
    return bool(device.figures.utilization if device.figures.own_fraction is None else device.figures.own_fraction)


def _why_none(scored: Sequence[DeviceUsage]) -> str | None:
    for device in scored:
        if why := device.why_no_utilization:
            return why
        if device.figures.covered_fraction < LEAST_COVERED:
            return f"{device.figures.name}: only {100 * device.figures.covered_fraction:.0f} % of the window covered"
    return None


def _spoiled(used: Sequence[DeviceUsage]) -> tuple[Validity | None, str]:
    worst = max(used, key=lambda device: device.figures.foreign_fraction or 0.0)
    if (foreign := worst.figures.foreign_fraction or 0.0) > MOST_FOREIGN:
        pids = ", ".join(map(str, worst.foreign_pids))
        how = f"used it {100 * foreign:.0f} % of the time"
        return Validity.CONTAMINATED, f"{worst.figures.name}: other processes ({pids}) {how}"
    worst = max(used, key=lambda device: device.figures.throttled_fraction or 0.0)
    if (throttled := worst.figures.throttled_fraction or 0.0) > MOST_THROTTLED:
        why = ", ".join(sorted(THROTTLING.intersection(worst.clock_reasons)))
        how = f"its clocks were throttled {100 * throttled:.0f} % of the time ({why})"
        return Validity.THROTTLED, f"{worst.figures.name}: {how}"
    return None, ""


def _roles(trial: TrialGpus, devices: int) -> dict[int, GpuRole]:
    if trial.data is None or trial.model is None or trial.data == trial.model:
        return {}
    roles = {trial.data: GpuRole.DATA, trial.model: GpuRole.MODEL}
    return roles if max(roles) < devices else {}


def _measurement(device: DeviceUsage, *, scored: bool, role: GpuRole | None) -> GpuMeasurement:
    windows = []
    for end_s, length_s, busy in device.windows:
        since_s = round(end_s - device.t0_s, 6)
        windows.append((since_s, min(round(length_s, 6), since_s), busy))  # rounding must not put it outside
    return GpuMeasurement(
        figures=replace(device.figures, utilization=None) if device.lost else device.figures,
        scored=scored,
        busy_windows=tuple(windows),
        role=role,
    )


class GpuTimeline:
    """Records of some devices; one thread may add records while another reads.

    Args:
        uuids: The devices that count, in the order in which the trial sees them.
        since_s: Monotonic time after which records are expected.
    """

    def __init__(self, uuids: Sequence[str], *, since_s: float) -> None:
        self._uuids = tuple(uuids)
        self._lock = threading.Lock()
        self._devices = {uuid: DeviceTimeline(uuid=uuid) for uuid in self._uuids}
        self._driver = ""
        self._began_s = since_s
        self._newest_s: float | None = None
        self._absences: list[_Absence] = []

    def add(self, record: Record) -> None:
        """Add a record, in the collector's order; records of other devices are ignored."""
        with self._lock:
            self._newest_s = record.t_s if self._newest_s is None else max(self._newest_s, record.t_s)
            match record:
                case StreamStarted():
                    self._driver = record.driver
                    self._end_absences(record.t_s, None)
                    for device in self._devices.values():
                        device.absent.clear()  # a new driver reports them again
                case GpuLost():
                    self._end_absences(record.t_s, record.uuid)
                    if record.uuid is None or record.uuid in self._devices:
                        self._absences.append(_Absence(record))
                case _ if record.uuid in self._devices:
                    if isinstance(record, GpuFound):
                        self._end_absences(record.t_s, record.uuid)
                    self._devices[record.uuid].keep(record)

    def restart(self, now_s: float) -> None:
        """Expect the records of a new collector, which reports lasting losses again."""
        with self._lock:
            self._began_s, self._newest_s = now_s, None
            self._end_absences(now_s, None, *self._uuids)

    def forget(self, before_s: float) -> None:
        """Drop records and ended losses from before that time, to bound the memory."""
        with self._lock:
            self._absences = [absence for absence in self._absences if absence.until_s >= before_s]
            for device in self._devices.values():
                device.forget(before_s)

    @property
    def reached_s(self) -> float:
        """Time until which the utilization of all devices that report it is known, from minus infinity on."""
        with self._lock:
            reporting = [device.windows for device in self._devices.values() if Capability.RATES not in device.absent]
            return min((windows[-1][0] if windows else -math.inf for windows in reporting), default=math.inf)

    def losses(self, uuids: Iterable[str] = ()) -> tuple[GpuLost, ...]:
        """Return the lasting losses: first the driver's, then those of these devices."""
        with self._lock:
            lasting = self._lasting()
        return tuple(lasting[uuid] for uuid in (None, *uuids) if uuid in lasting)

    def silence(self, now_s: float, *, start_s: float, record_s: float) -> str | None:
        """Return a clause, for users, on too long a silence; None also if the driver or all devices are lost.

        Args:
            start_s: Longest time from the start of the collector to its first record.
            record_s: Longest time since its newest record; one is due every second.
        """
        with self._lock:
            lasting, newest_s = self._lasting(), self._newest_s
        if None in lasting or lasting.keys() >= self._devices.keys():
            return None
        if newest_s is None:
            waited_s = now_s - self._began_s
            return f"the GPU collector has not started after {waited_s:.0f} s" if waited_s > start_s else None
        silent_s = now_s - newest_s
        return f"no readings from the GPU collector for {silent_s:.0f} s" if silent_s > record_s else None

    def between(
        self, t0_s: float, t1_s: float, *, own_pids: Collection[int] = (), started_s: float | None = None
    ) -> DevicesUsage:
        """Return the usage of the devices over a past stretch of monotonic time.

        Args:
            own_pids: Processes of the trial, by this process's ids, ended ones included.
            started_s: Start of the trial, after which memory counts. If process ids are of another namespace, later
                arrivals are the trial's. None: memory counts from `t0_s`, and their owner is unknown.
        """
        with self._lock:
            usages = []
            for uuid in self._uuids:
                usage = self._devices[uuid].between(t0_s, t1_s, frozenset(own_pids), started_s)
                absences = (absence for absence in self._absences if absence.loss.uuid == uuid)
                losses = (one.loss.name for one in absences if one.loss.t_s <= t1_s and one.until_s >= t0_s)
                usages.append(replace(usage, lost=next(losses, None)))
            # The driver's loss is one of all devices; it does not affect stretches that ended before.
            driver_loss = self._lasting().get(None)
            lost = driver_loss.why if driver_loss and driver_loss.t_s <= t1_s else None
            return DevicesUsage(devices=tuple(usages), driver=self._driver, lost=lost)

    def _lasting(self) -> dict[str | None, GpuLost]:
        return {absence.loss.uuid: absence.loss for absence in self._absences if absence.until_s == math.inf}

    def _end_absences(self, t_s: float, *uuids: str | None) -> None:
        for absence in self._absences:
            if absence.until_s == math.inf and absence.loss.uuid in uuids:
                absence.until_s = t_s


@dataclass
class _Absence:
    """Time in which a device, or the driver, was lost."""

    loss: GpuLost
    until_s: float = math.inf


_NEAR_S = 2 * STATE_S  # readings this far outside a stretch describe its end
_BUSY_AT_ALL = 0.01
_ROUNDING_S = 1e-3


@dataclass(kw_only=True)
class DeviceTimeline:
    """Records of one device, each kind in time order."""

    uuid: str
    name: str = ""
    memory_bytes: int | None = None
    polled: bool = False
    windows: list[BusyWindow] = field(default_factory=list)
    states: list[GpuState] = field(default_factory=list)
    shares: list[ProcessShares] = field(default_factory=list)
    activity: list[UnitActivity] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def keep(self, record: Record) -> None:
        match record:
            case GpuFound():
                self.name, self.memory_bytes = record.name, record.memory_bytes
            case BusyWindows():
                self.polled = record.source == Capability.RATES
                last_s = self.windows[-1][0] if self.windows else -math.inf
                # A returned device repeats its ring.
                self.windows += [window for window in record.windows if window[0] - window[1] > last_s - _ROUNDING_S]
            case GpuState():
                self.states.append(record)
            case ProcessShares():
                self.shares.append(record)
            case UnitActivity():
                self.activity.append(record)
            case CapabilityOff():
                self.absent[record.capability] = record.why
            case _:
                pass

    def forget(self, before_s: float) -> None:
        """Drop readings from before that time, except the newest state, which shows earlier processes."""
        del self.windows[: bisect_left(self.windows, before_s, key=lambda window: window[0])]
        del self.states[: bisect_left(self.states[:-1], before_s, key=lambda state: state.t_s)]
        for records in (self.shares, self.activity):
            del records[: bisect_left(records, before_s, key=lambda record: record.t_s)]

    def between(self, t0_s: float, t1_s: float, own_pids: frozenset[int], started_s: float | None) -> DeviceUsage:
        windows = _inside(self.windows, t0_s, t1_s)
        covered_s = math.fsum(length_s for _, length_s, _ in windows)
        busy = math.fsum(length_s * busy for _, length_s, busy in windows) / covered_s if covered_s else None
        states = [state for state in self.states if t0_s <= state.t_s <= t1_s]
        near = [state for state in self.states if t0_s - _NEAR_S <= state.t_s <= t1_s + _NEAR_S]
        memory_s = t0_s if started_s is None else started_s, t1_s + STATE_S
        memory = [state.memory_bytes for state in self.states if memory_s[0] <= state.t_s <= memory_s[1]]
        power_w = _mean_power(near, t0_s, t1_s)
        reasons = [state.reasons for state in states if state.reasons is not None]
        own, foreign, foreign_pids, attribution = self._shares(t0_s, t1_s, busy, own_pids, started_s)
        parts = [(record, overlap_s) for record in self.activity if (overlap_s := _overlap_s(record, t0_s, t1_s)) > 0.0]
        figures = GpuFigures(
            uuid=self.uuid,
            name=self.name or self.uuid,
            utilization=None if busy is None or (self.polled and busy == 0.0) else min(1.0, busy),
            covered_fraction=min(1.0, covered_s / (t1_s - t0_s)),
            memory_total_bytes=self.memory_bytes,
            peak_memory_bytes=max((used for used in memory if used is not None), default=None),
            power_w=power_w,
            energy_j=None if power_w is None else power_w * (t1_s - t0_s),
            sm_activity=weighted_mean((record.sm, overlap_s) for record, overlap_s in parts),
            tensor_activity=weighted_mean((record.tensor, overlap_s) for record, overlap_s in parts),
            dram_activity=weighted_mean((record.dram, overlap_s) for record, overlap_s in parts),
            own_fraction=own,
            foreign_fraction=foreign,
            throttled_fraction=_mean(float(not THROTTLING.isdisjoint(some)) for some in reasons),
        )
        return DeviceUsage(
            figures=figures,
            t0_s=t0_s,
            windows=tuple(windows),
            sm_clock_mhz=_mean(state.sm_clock_mhz for state in states),
            temperature_start_c=_nearest(near, t0_s),
            temperature_end_c=_nearest(near, t1_s),
            clock_reasons={reason: n / len(reasons) for reason, n in Counter(chain.from_iterable(reasons)).items()},
            foreign_pids=foreign_pids,
            attribution=attribution,
            absent=dict(self.absent),
        )

    def _shares(
        self, t0_s: float, t1_s: float, busy: float | None, own_pids: frozenset[int], started_s: float | None
    ) -> tuple[float | None, float | None, tuple[int, ...], KernelAttribution]:
        """Return own share, foreign share, foreign processes, and the method that separated them."""
        unknown = (None, None, (), KernelAttribution.UNKNOWN)
        # Records that began before the trial include earlier processes, such as those of the previous trial.
        known = [record for record in self.shares if started_s is None or record.t0_s >= started_s]
        parts = [(record, overlap_s) for record in known if (overlap_s := _overlap_s(record, t0_s, t1_s)) > 0.0]
        known_s = math.fsum(overlap_s for _, overlap_s in parts)
        if not parts:
            return unknown
        by_pid: dict[int, float] = {}
        for record, overlap_s in parts:
            for pid, share in record.shares:
                by_pid[pid] = by_pid.get(pid, 0.0) + share * overlap_s / known_s
        if busy is not None and busy > _BUSY_AT_ALL and not by_pid:
            return unknown  # kernels ran, but the driver hides whose: a container
        seen_pids = self._holders_until(math.inf) | by_pid.keys()
        if not by_pid or not own_pids.isdisjoint(seen_pids):
            own, attribution = own_pids, KernelAttribution.BY_PROCESS
        elif started_s is not None and any(
            state.holders is not None and state.t_s <= started_s for state in self.states
        ):
            own, attribution = frozenset(seen_pids - self._holders_until(started_s)), KernelAttribution.BY_ARRIVAL
        else:
            return unknown
        foreign = {pid: share for pid, share in by_pid.items() if pid not in own and share > 0.0}
        own_share = math.fsum(share for pid, share in by_pid.items() if pid in own)
        return own_share, math.fsum(foreign.values()), tuple(sorted(foreign)), attribution

    def _holders_until(self, t_s: float) -> set[int]:
        return {pid for state in self.states if state.t_s <= t_s for pid, _, _ in state.holders or ()}


def _inside(windows: Sequence[BusyWindow], t0_s: float, t1_s: float) -> list[BusyWindow]:
    first = bisect_left(windows, t0_s, key=lambda window: window[0])
    last = bisect_right(windows, t1_s, key=lambda window: window[0])
    return [window for window in windows[first:last] if window[0] - window[1] >= t0_s]


def _mean_power(states: Sequence[GpuState], t0_s: float, t1_s: float) -> float | None:
    """Return the mean power over a stretch, from the counted energy if there is one.

    None if the readings cover half of it or less.
    """
    energy = [(state.t_s, state.energy_j) for state in states if state.energy_j is not None]
    was_reset = any(later[1] < earlier[1] for earlier, later in pairwise(energy))  # with the driver
    power = [(state.t_s, state.power_w) for state in states if state.power_w is not None]
    if len(energy) >= 2 and not was_reset:
        ends_s = np.clip([t0_s, t1_s], energy[0][0], energy[-1][0])
        if ends_s[1] - ends_s[0] > 0.5 * (t1_s - t0_s):
            start_j, end_j = np.interp(ends_s, [t_s for t_s, _ in energy], [joule for _, joule in energy])
            return float((end_j - start_j) / (ends_s[1] - ends_s[0]))
    if not power or min(t1_s, power[-1][0]) - max(t0_s, power[0][0]) <= 0.5 * (t1_s - t0_s):
        return None
    inside = [watt for t_s, watt in power if t0_s <= t_s <= t1_s]
    return _mean(inside or (watt for _, watt in power))


def _nearest(states: Iterable[GpuState], t_s: float) -> int | None:
    known = [state for state in states if state.temperature_c is not None and abs(state.t_s - t_s) <= _NEAR_S]
    nearest = min(known, key=lambda state: abs(state.t_s - t_s), default=None)
    return None if nearest is None else nearest.temperature_c


def _overlap_s(record: ProcessShares | UnitActivity, t0_s: float, t1_s: float) -> float:
    return min(record.t_s, t1_s) - max(record.t0_s, t0_s)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
