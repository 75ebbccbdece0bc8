"""Usage of the GPUs of a trial over one stretch of time, each number with its evidence."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.gpu.collect.records import Capability
from autotune.gpu.driver_windows import BusyWindow
from autotune.records import GpuFigures, Scalar

MOST_LOST = 0.05
"""Share of the readings that may fail in passing; beyond it a number is not to be relied on."""

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
        t0_s: Start of the stretch.
        t1_s: Its end.
        windows: The driver windows that lie wholly inside, as `oscillation.Segment.within` takes them.
        polled: Whether they come from `PolledWindows`, and lie up to a driver window late.
        energy_counted: Whether the device counted the energy itself; else it is from one reading of power a second.
        sm_clock_mhz: Mean of the readings.
        temperature_start_c: Temperature at the start of the stretch.
        temperature_end_c: Temperature at its end.
        clock_reasons: Share of the readings with each reason that was seen, throttling or not.
        foreign_pids: Processes that are not the trial's and whose kernels ran, as the driver numbers them.
        attribution: Method by which own kernels were told from those of others.
        failed: Number of readings that failed in passing, by `Capability`.
        unreliable: The capabilities of which more than `MOST_LOST` of the readings failed.
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
    failed: Mapping[str, int] = field(default_factory=dict)
    unreliable: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    lost: str | None = None

    @property
    def invalid(self) -> str | None:
        """Reason, for people, why the utilization must not be used; None if it may, as far as there is one."""
        if self.lost:
            return f"{self.figures.name}: {self.lost}"
        for capability in (Capability.SAMPLES, Capability.RATES):
            if capability in self.unreliable:
                return f"{self.figures.name}: more than {MOST_LOST:.0%} of the readings of its {capability} failed"
        return None

    @property
    def why_never_measured(self) -> str | None:
        """Reason, for people, why no trial will get its utilization either; None where that is not known."""
        why = self.absent.get(Capability.RATES)
        return None if why is None else f"{self.figures.name}: it does not report utilization ({why})"

    @property
    def why_no_utilization(self) -> str | None:
        """Reason, for people, why there is no utilization; None where there is one."""
        if self.figures.utilization is not None:
            return None
        if self.lost:
            return f"{self.figures.name}: {self.lost}"
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
    def conditions(self) -> dict[str, Scalar]:
        """Conditions of these numbers besides the trial's values, kept with them."""
        found: dict[str, Scalar] = {"gpu_driver": self.driver or None}
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
