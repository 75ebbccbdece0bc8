"""Table of metrics: label, unit, range, direction and printed form of each.

Whoever shows a `records.Measurement` or a `results.PooledGpu` goes through this table. JSON holds all of its metrics,
the table on the screen those that `report/answer.py` names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from autotune.records import Measurement

ABSENT = "-"
"""Text where nothing was measured."""


class Direction(StrEnum):
    """Direction in which a metric is better."""

    HIGHER = "higher"
    LOWER = "lower"
    NONE = "none"  # it describes a trial and does not judge it


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: Field of the record that holds it, and key in ``--json``.
        label: What people call it.
        unit: Unit of the number itself, as stored.
        high: Largest possible value; the smallest is 0 for all.
        better: Which way is better.
        show: Prints a number with the unit that people read.
    """

    name: str
    label: str
    unit: str
    high: float
    better: Direction
    show: Callable[[float], str]

    def text(self, value: float | None) -> str:
        """Return a value as text with its unit; `ABSENT` where there is none."""
        return ABSENT if value is None else self.show(value)


def _significant(value: float) -> str:
    """Three digits, never in scientific notation: 0.0123, 4.57, 128, 20480."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _rate(value: float) -> str:
    return f"{_significant(value)}/s"


def _seconds(value: float) -> str:
    return f"{_significant(value)} s" if value >= 1 else f"{_significant(value * 1e3)} ms"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def _whole_percent(value: float) -> str:
    return f"{value * 100:.0f} %"  # a driver counts in these


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"


def _joule(value: float) -> str:
    return f"{_significant(value)} J"


def _count(value: float) -> str:
    return f"{value:.0f}"


_TABLE = (
    Metric(
        name="samples_per_s",
        label="samples",
        unit="1/s",
        high=math.inf,
        better=Direction.HIGHER,
        show=_rate,
    ),
    Metric(
        name="gpu_utilization",
        label="GPU utilization",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_percent,
    ),
    Metric(
        name="cv",
        label="step-time variation",
        unit="fraction",
        high=math.inf,
        better=Direction.LOWER,
        show=_percent,
    ),
    Metric(
        name="data_wait_fraction",
        label="waiting for data",
        unit="fraction",
        high=1.0,
        better=Direction.LOWER,
        show=_percent,
    ),
    Metric(
        name="step_p50_s",
        label="step time, median",
        unit="s",
        high=math.inf,
        # A larger batch has longer steps and may well be faster.
        better=Direction.NONE,
        show=_seconds,
    ),
    Metric(
        name="step_p95_s",
        label="step time, 95th percentile",
        unit="s",
        high=math.inf,
        better=Direction.NONE,
        show=_seconds,
    ),
    Metric(
        name="first_step_s",
        label="start to first step",
        unit="s",
        high=math.inf,
        better=Direction.LOWER,
        show=_seconds,
    ),
    Metric(
        name="cpu_cores",
        label="CPU",
        unit="cores",
        high=math.inf,
        better=Direction.NONE,
        show=lambda value: f"{value:.2f} cores",
    ),
    Metric(
        name="peak_memory_bytes",
        label="host memory, peak",
        unit="bytes",
        high=math.inf,
        better=Direction.LOWER,
        show=_gib,
    ),
    Metric(
        name="gpu_memory_bytes",
        label="GPU memory, peak",
        unit="bytes",
        high=math.inf,
        better=Direction.LOWER,
        show=_gib,
    ),
    Metric(
        name="energy_per_sample_j",
        label="energy for a sample",
        unit="J",
        high=math.inf,
        better=Direction.LOWER,
        show=_joule,
    ),
    Metric(
        name="filled_samples_per_s",
        label="samples, caches filled (estimate)",
        unit="1/s",
        high=math.inf,
        better=Direction.HIGHER,
        show=_rate,
    ),
    Metric(
        name="window_s",
        label="measured for",
        unit="s",
        high=math.inf,
        better=Direction.NONE,
        show=_seconds,
    ),
    Metric(
        name="steps",
        label="steps measured",
        unit="steps",
        high=math.inf,
        better=Direction.NONE,
        show=_count,
    ),
)

_GPU_TABLE = (
    Metric(
        name="effective_utilization",
        label="effective utilization",
        unit="fraction",
        high=math.inf,  # its limit is learned, and may be a little too low
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="utilization",
        label="GPU utilization, mean",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="p10",
        label="GPU utilization, 10th percentile",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="duty_fraction",
        label="GPU duty cycle",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="low",
        label="GPU utilization, low level",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="high",
        label="GPU utilization, high level",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_whole_percent,
    ),
    Metric(
        name="period_s",
        label="GPU utilization, period",
        unit="s",
        high=math.inf,
        better=Direction.NONE,
        show=_seconds,
    ),
    Metric(
        name="sm_activity",
        label="multiprocessors at work",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_percent,
    ),
    Metric(
        name="tensor_activity",
        label="tensor cores at work",
        unit="fraction",
        high=1.0,
        better=Direction.HIGHER,
        show=_percent,
    ),
    Metric(
        name="dram_activity",
        label="GPU memory's bandwidth used",
        unit="fraction",
        high=1.0,
        # What a fused kernel saves is no loss.
        better=Direction.NONE,
        show=_percent,
    ),
    Metric(
        name="peak_memory_bytes",
        label="GPU memory, peak",
        unit="bytes",
        high=math.inf,
        better=Direction.LOWER,
        show=_gib,
    ),
    Metric(
        name="energy_per_sample_j",
        label="energy for a sample",
        unit="J",
        high=math.inf,
        better=Direction.LOWER,
        show=_joule,
    ),
    Metric(
        name="throttled_fraction",
        label="clocks held down",
        unit="fraction",
        high=1.0,
        better=Direction.LOWER,
        show=_percent,
    ),
    Metric(
        name="foreign_fraction",
        label="used by others",
        unit="fraction",
        high=1.0,
        better=Direction.LOWER,
        show=_percent,
    ),
    Metric(
        name="covered_fraction",
        label="time that the driver covers",
        unit="fraction",
        high=1.0,
        better=Direction.NONE,
        show=_percent,
    ),
    Metric(
        name="samples",
        label="driver samples",
        unit="samples",
        high=math.inf,
        better=Direction.NONE,
        show=_count,
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
"""Every metric by name, in the order in which people should see them."""

GPU_METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _GPU_TABLE})
"""Metrics of one GPU over a point's trials, and of all of them (`results.PooledGpu`, `results.PooledGpus`)."""


def values_of(measurement: Measurement) -> dict[str, float | None]:
    """Return a measurement as name and value, in the order of `METRICS`."""
    return {name: getattr(measurement, name) for name in METRICS}
