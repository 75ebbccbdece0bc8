"""Table of metrics: label, unit, direction and printed form, for all output of a measurement or a pooled GPU."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from autotune.records import Measurement

ABSENT = "-"
"""Text for a missing measurement."""


class Direction(StrEnum):
    """Direction in which a metric improves."""

    HIGHER = "higher"
    LOWER = "lower"
    NONE = "none"  # describes a trial, does not judge it


@dataclass(frozen=True)
class Metric:
    """Metric.

    Attributes:
        name: Field of the record, and key in ``--json``.
        unit: Unit as stored.
        show: Formats a value with its display unit.
    """

    name: str
    label: str
    unit: str
    better: Direction
    show: Callable[[float], str]

    def text(self, value: float | None) -> str:
        """Format a value with its unit; `ABSENT` for None."""
        return ABSENT if value is None else self.show(value)


def _significant(value: float) -> str:
    """Format three digits, never in scientific notation: 0.0123, 4.57, 128, 20480."""
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
    return f"{value * 100:.0f} %"  # the resolution of a driver


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"


def _joule(value: float) -> str:
    return f"{_significant(value)} J"


_TABLE = (
    Metric("samples_per_s", "samples", "1/s", Direction.HIGHER, _rate),
    Metric("gpu_utilization", "GPU utilization", "fraction", Direction.HIGHER, _percent),
    Metric("cv", "step-time variation", "fraction", Direction.LOWER, _whole_percent),
    Metric("stall_fraction", "time in stalls", "fraction", Direction.LOWER, _percent),
    Metric("beat_s", "stall period", "s", Direction.NONE, _seconds),
    Metric("stall_wait_fraction", "stall time waiting for data", "fraction", Direction.NONE, _whole_percent),
    Metric("stall_epoch_fraction", "stall time at epoch ends", "fraction", Direction.NONE, _whole_percent),
    Metric("data_wait_fraction", "waiting for data", "fraction", Direction.LOWER, _percent),
    Metric("step_p50_s", "step time, median", "s", Direction.NONE, _seconds),  # longer with a larger batch
    Metric("step_p95_s", "step time, 95th percentile", "s", Direction.NONE, _seconds),
    Metric("step_p99_s", "step time, 99th percentile", "s", Direction.NONE, _seconds),
    Metric("step_max_s", "step time, longest", "s", Direction.NONE, _seconds),
    Metric("first_step_s", "start to first step", "s", Direction.LOWER, _seconds),
    Metric("setup_s", "start: imports, model, opening data", "s", Direction.LOWER, _seconds),
    Metric("first_batch_s", "start: first batch", "s", Direction.LOWER, _seconds),
    Metric("cpu_cores", "CPU", "cores", Direction.NONE, "{:.2f} cores".format),
    Metric("peak_memory_bytes", "host memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("gpu_memory_bytes", "GPU memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("energy_per_sample_j", "energy per sample", "J", Direction.LOWER, _joule),
    Metric("filled_samples_per_s", "samples, caches filled (estimate)", "1/s", Direction.HIGHER, _rate),
    Metric("overall_samples_per_s", "samples, including evaluations and checkpoints", "1/s", Direction.HIGHER, _rate),
    Metric("speed_error", "standard error of the speed", "fraction", Direction.LOWER, _percent),
    Metric("cycles", "whole cycles measured", "cycles", Direction.NONE, "{:.0f}".format),
    Metric("window_s", "measuring window", "s", Direction.NONE, _seconds),
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
    Metric("sm_activity", "SM activity", "fraction", Direction.HIGHER, _percent),
    Metric("tensor_activity", "tensor core activity", "fraction", Direction.HIGHER, _percent),
    Metric(
        "dram_activity", "GPU memory bandwidth used", "fraction", Direction.NONE, _percent
    ),  # less traffic is not slower
    Metric("peak_memory_bytes", "GPU memory, peak", "bytes", Direction.LOWER, _gib),
    Metric("energy_per_sample_j", "energy per sample", "J", Direction.LOWER, _joule),
    Metric("throttled_fraction", "clocks throttled", "fraction", Direction.LOWER, _percent),
    Metric("foreign_fraction", "used by other processes", "fraction", Direction.LOWER, _percent),
    Metric("covered_fraction", "time covered by the driver", "fraction", Direction.NONE, _percent),
    Metric("samples", "driver samples", "samples", Direction.NONE, "{:.0f}".format),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
"""Metrics by name, in display order."""

GPU_METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _GPU_TABLE})
"""Metrics of one GPU, or all, over a point's trials (`records.PooledGpu`, `records.PooledGpus`)."""


def values_of(measurement: Measurement) -> dict[str, float | None]:
    """Return a measurement's values by name, in the order of `METRICS`."""
    return {name: getattr(measurement, name) for name in METRICS}
