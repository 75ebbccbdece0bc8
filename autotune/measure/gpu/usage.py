"""Usage of the GPUs of a trial over one stretch of time, each number with its evidence."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from autotune.measure.gpu.driver import THROTTLING
from autotune.measure.gpu.records import Capability
from autotune.measure.gpu.windows import BusyWindow
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.records import GpuConditions, GpuFigures, GpuMeasurement, GpuRole, Scalar, Validity

MOST_FOREIGN = 0.01
"""Share of the time in which kernels of others may run; beyond it a trial is contaminated."""

MOST_THROTTLED = 0.1
"""Share of the readings that may show throttling: the bit for hardware slowdown also shows at a change of clocks."""


class Attribution(StrEnum):
    """Method by which a trial's own kernels were told from those of others."""

    BY_PROCESS = "by process id"
    BY_ARRIVAL = "by who came after the start"  # in a container; a stranger who came then too is not told apart
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class DeviceUsage:
    """Usage of one GPU over one stretch of time. Shares are 0..1 of that time; None is "not known", never 0.

    Attributes:
        figures: Figures over the stretch. The mean utilization is weighted by time; polled zeros are not believed:
            there are devices without a meter that answer 0 for ever (NVIDIA Thor, seen by the authors of rezolus).
            Memory is of one reading a second, up to the first after the stretch.
        windows: The driver windows that lie wholly inside, as `oscillation.Segment.within` takes them.
        polled: Whether they come from `PolledWindows`, and lie up to a driver window late.
        energy_counted: Whether the device counted the energy itself; else it is from one reading of power a second.
        clock_reasons: Share of the readings with each reason that was seen, throttling or not.
        foreign_pids: Processes that are not the trial's and whose kernels ran, as the driver numbers them.
        attribution: Method by which own kernels were told from those of others.
        absent: Capabilities that the device never answers, and the reason.
        lost: Loss of the device, one of `driver_errors.FATAL_NAMES`; None if it was not lost.
    """

    figures: GpuFigures
    t0_s: float
    t1_s: float
    windows: Sequence[BusyWindow] = ()
    polled: bool = False
    energy_counted: bool = False
    sm_clock_mhz: float | None = None
    temperature_start_c: int | None = None
    temperature_end_c: int | None = None
    clock_reasons: Mapping[str, float] = field(default_factory=dict)
    foreign_pids: tuple[int, ...] = ()
    attribution: Attribution = Attribution.UNKNOWN
    absent: Mapping[str, str] = field(default_factory=dict)
    lost: str | None = None

    @property
    def why_never_measured(self) -> str | None:
        """Reason, for people, why no trial will get its utilization either; None where that is not known."""
        why = self.absent.get(Capability.RATES)
        return None if why is None else f"{self.figures.name}: it does not report utilization ({why})"

    @property
    def why_no_utilization(self) -> str | None:
        """Reason, for people, why there is no utilization, or none to be used; None if there is."""
        if self.lost:
            return f"{self.figures.name}: {self.lost}"
        if self.figures.utilization is not None:
            return None
        if self.why_never_measured:
            only = "; the activity of its units is known" if self.figures.sm_activity is not None else ""
            return f"{self.why_never_measured}{only}"
        if self.windows:
            return f"{self.figures.name}: it reports 0 % throughout, as devices do that do not measure it"
        return f"{self.figures.name}: no driver window lies wholly in this time"


@dataclass(frozen=True, kw_only=True)
class DevicesUsage:
    """Usage of the GPUs of a trial over one stretch of time.

    Attributes:
        devices: In the order in which the trial sees them.
        driver: Version of the driver; empty if it does not say.
        lost: Sentence on the loss of the driver; None if it was not lost.
    """

    devices: tuple[DeviceUsage, ...]
    driver: str = ""
    lost: str | None = None

    @property
    def utilization(self) -> float | None:
        """Mean utilization of the devices; None unless it is known of each."""
        total = _sum(device.figures.utilization for device in self.devices)
        return None if total is None else total / len(self.devices)

    @property
    def power_w(self) -> float | None:
        """Mean power of all devices together; None unless it is known of each."""
        return _sum(device.figures.power_w for device in self.devices)

    @property
    def readings(self) -> dict[str, Scalar]:
        """State of each device, by the device's place and the reading's name."""
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
    """Return the sum; None unless there are some values and all are known."""
    every = list(values)
    known = [value for value in every if value is not None]
    return math.fsum(known) if every and len(known) == len(every) else None


# Usage of a trial's GPUs as its record keeps it, made from the usage of devices.


LEAST_COVERED = 0.5
"""Share of the window that driver windows must cover for the utilization of a single trial to be given."""


def usage_of_trial(usage: DevicesUsage, trial: TrialGpus, trouble: str | None = None) -> GpuUsage:
    """Condense the usage of devices over a trial's window.

    A GPU that the trial may use, and on which nothing of it ran, says nothing about the trial: it is measured, and
    neither scored nor asked for others who use it.

    Args:
        usage: Usage of the GPUs that the trial may use, in the order in which it sees them, at least one.
        trial: The trial's GPUs, as far as the trial and its config name them.
        trouble: Reason, for people, why the collector is silent at present; None if it is not.
    """
    used = [device for device in usage.devices if trial.reported or _works(device)] or list(usage.devices)
    has_model = trial.model is not None and trial.model < len(usage.devices)
    scored = [usage.devices[trial.model]] if trial.model is not None and has_model else used
    why_none = usage.lost or _why_none(scored)
    if why_none and trouble:
        why_none = trouble
    roles = _roles(trial, len(usage.devices))
    spoiled, how = _spoiled(used)
    memory = [
        device.figures.peak_memory_bytes for device in usage.devices if device.figures.peak_memory_bytes is not None
    ]
    return GpuUsage(
        utilization=None if why_none else replace(usage, devices=tuple(scored)).utilization,
        peak_memory_bytes=max(memory, default=None),
        power_w=replace(usage, devices=tuple(used)).power_w,
        devices=tuple(
            _measurement(device, scored=device in scored, role=roles.get(place))
            for place, device in enumerate(usage.devices)
        ),
        spoiled=spoiled,
        remark="; ".join(part for part in (why_none and f"GPU utilization not measured: {why_none}", how) if part),
        conditions=GpuConditions(driver=usage.driver or None, readings=usage.readings, not_measured=why_none),
    )


def _works(device: DeviceUsage) -> bool:
    """Return True if something of the trial ran there, as far as that can be told."""
    return bool(device.figures.utilization if device.figures.own_fraction is None else device.figures.own_fraction)


def _why_none(scored: Sequence[DeviceUsage]) -> str | None:
    for device in scored:
        if why := device.why_no_utilization:
            return why
        if device.figures.covered_fraction < LEAST_COVERED:
            return f"{device.figures.name}: only {device.figures.covered_fraction:.0%} of the window was seen"
    return None


def _spoiled(used: Sequence[DeviceUsage]) -> tuple[Validity | None, str]:
    """Return what spoiled the trial, as far as that is known, and a sentence about it."""
    worst = max(used, key=lambda device: device.figures.foreign_fraction or 0.0)
    if (worst.figures.foreign_fraction or 0.0) > MOST_FOREIGN:
        pids = ", ".join(map(str, worst.foreign_pids))
        share = f"{worst.figures.foreign_fraction:.0%}"
        return Validity.CONTAMINATED, f"{worst.figures.name}: others (process {pids}) used it for {share} of the time"
    worst = max(used, key=lambda device: device.figures.throttled_fraction or 0.0)
    if (worst.figures.throttled_fraction or 0.0) > MOST_THROTTLED:
        why = ", ".join(sorted(THROTTLING.intersection(worst.clock_reasons)))
        share = f"{worst.figures.throttled_fraction:.0%}"
        return Validity.THROTTLED, f"{worst.figures.name}: its clocks were held down for {share} of the time ({why})"
    return None, ""


def _roles(trial: TrialGpus, devices: int) -> dict[int, GpuRole]:
    """Return the work of each GPU, by its place; nothing where data and model do not have one each."""
    if trial.data is None or trial.model is None or trial.data == trial.model:
        return {}
    roles = {trial.data: GpuRole.DATA, trial.model: GpuRole.MODEL}
    return roles if max(roles) < devices else {}


def _measurement(device: DeviceUsage, *, scored: bool, role: GpuRole | None) -> GpuMeasurement:
    windows = []
    for end_s, length_s, busy in device.windows:
        since_s = round(end_s - device.t0_s, 6)
        windows.append((since_s, min(round(length_s, 6), since_s), busy))  # no rounding puts one outside
    return GpuMeasurement(
        figures=replace(device.figures, utilization=None) if device.lost else device.figures,
        scored=scored,
        busy_windows=tuple(windows),
        role=role,
    )
