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


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Field of the record that holds it, and key in ``--json``.
        label: What people call it.
        unit: Unit of the number itself, as stored.
        better: Which way is better.
        show: Prints a number with the unit that people read.
    """

    name: str
    label: str
    unit: str
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


_TABLE = (
    Metric("samples_per_s", "samples", "1/s", Direction.HIGHER, _rate),
    Metric("gpu_utilization", "GPU utilization", "fraction", Direction.HIGHER, _percent),
    Metric("cv", "step-time variation", "fraction", Direction.LOWER, _whole_percent),
    Metric("stall_fraction", "in stalls", "fraction", Direction.LOWER, _percent),
    Metric("beat_s", "from stall to stall", "s", Direction.NONE, _seconds),
    Metric("stall_wait_fraction", "of stalls, waiting for data", "fraction", Direction.NONE, _whole_percent),
    Metric("stall_epoch_fraction", "of stalls, at ends of epochs", "fraction", Direction.NONE, _whole_percent),
    Metric("data_wait_fraction", "waiting for data", "fraction", Direction.LOWER, _percent),
    Metric("step_p50_s", "step time, median", "s", Direction.NONE, _seconds),  # a larger batch has longer ones
    Metric("step_p95_s", "step time, 95th percentile", "s", Direction.NONE, _seconds),
    Metric("step_p99_s", "step time, 99th percentile", "s", Direction.NONE, _seconds),
    Metric("step_max_s", "step time, longest", "s", Direction.NONE, _seconds),
    Metric("first_step_s", "start to first step", "s", Direction.LOWER, _seconds),
    Metric("setup_s", "start: imports, model, data opened", "s", Direction.LOWER, _seconds),
    Metric("first_batch_s", "start: first batch", "s", Direction.LOWER, _seconds),
    Metric("cpu_cores", "CPU", "cores", Direction.NONE, "{:.2f} cores".format),
    Metric("peak_memory_bytes", "host memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("gpu_memory_bytes", "GPU memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("energy_per_sample_j", "energy for a sample", "J", Direction.LOWER, _joule),
    Metric("filled_samples_per_s", "samples, caches filled (estimate)", "1/s", Direction.HIGHER, _rate),
    Metric("overall_samples_per_s", "samples, with evaluations and checkpoints", "1/s", Direction.HIGHER, _rate),
    Metric("speed_error", "standard error of the speed", "fraction", Direction.LOWER, _percent),
    Metric("cycles", "whole cycles measured", "cycles", Direction.NONE, "{:.0f}".format),
    Metric("window_s", "measured for", "s", Direction.NONE, _seconds),
    Metric("steps", "steps measured", "steps", Direction.NONE, "{:.0f}".format),
)

_GPU_TABLE = (
    Metric("effective_utilization", "effective utilization", "fraction", Direction.HIGHER, _whole_percent),
    Metric("utilization", "GPU utilization, mean", "fraction", Direction.HIGHER, _whole_percent),
    Metric("p10", "GPU utilization, 10th percentile", "fraction", Direction.HIGHER, _whole_percent),
    Metric("idle_fraction", "GPU below 10 %", "fraction", Direction.LOWER, _whole_percent),
    Metric("duty_fraction", "GPU duty cycle", "fraction", Direction.HIGHER, _whole_percent),
    Metric("low", "GPU utilization, low level", "fraction", Direction.HIGHER, _whole_percent),
    Metric("high", "GPU utilization, high level", "fraction", Direction.HIGHER, _whole_percent),
    Metric("period_s", "GPU utilization, period", "s", Direction.NONE, _seconds),
    Metric("sm_activity", "multiprocessors at work", "fraction", Direction.HIGHER, _percent),
    Metric("tensor_activity", "tensor cores at work", "fraction", Direction.HIGHER, _percent),
    Metric(
        "dram_activity", "GPU memory's bandwidth used", "fraction", Direction.NONE, _percent
    ),  # saving some is no loss
    Metric("peak_memory_bytes", "GPU memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("energy_per_sample_j", "energy for a sample", "J", Direction.LOWER, _joule),
    Metric("throttled_fraction", "clocks held down", "fraction", Direction.LOWER, _percent),
    Metric("foreign_fraction", "used by others", "fraction", Direction.LOWER, _percent),
    Metric("covered_fraction", "time that the driver covers", "fraction", Direction.NONE, _percent),
    Metric("samples", "driver samples", "samples", Direction.NONE, "{:.0f}".format),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
"""Every metric by name, in the order in which people should see them."""

GPU_METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _GPU_TABLE})
"""Metrics of one GPU over a point's trials, and of all of them (`results.PooledGpu`, `results.PooledGpus`)."""


def values_of(measurement: Measurement) -> dict[str, float | None]:
    """Return a measurement as name and value, in the order of `METRICS`."""
    return {name: getattr(measurement, name) for name in METRICS}
