"""Readings of a monitor as screens and scripts get them, and their JSON objects.

The records here are filled by `watching`. Shares are 0..1, absent is None.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from autotune.records import GpuFigures

FORMAT = 1
"""Version of the objects that ``monitor --json`` prints, one a line."""

_OF_A_READING = (
    "uuid",
    "name",
    "memory_total_bytes",
    "throttled_fraction",
    "own_fraction",
    "foreign_fraction",
    "sm_activity",
)
_OF_THE_SUMMARY = (
    "uuid",
    "name",
    "utilization",
    "peak_memory_bytes",
    "memory_total_bytes",
    "power_w",
    "throttled_fraction",
)


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
    """One GPU, or one instance of a GPU in MIG mode.

    Attributes:
        figures: Figures over the last minute. The activity of units is asked for instances of GPUs alone, of which
            there is no utilization; own and foreign kernels are None where no process is watched.
        trouble: Reason why it gives no readings at this moment; None while it does.
        busy: Share of the newest second in which a kernel ran.
        why_no_utilization: Reason, for people, why there is no utilization; None where there is.
        memory_used_bytes: Memory in use by all processes now.
        clock_reasons: Reasons for which its clocks are held down now; empty if there are none.
        throttle_reasons: Those of the last minute that count as throttling.
        absent: Readings that the device never gives, with the reason, for people.
        verdict: None while there is not enough to judge by; then `why_no_verdict` names what is missing.
        windows: End, length and busy share of each driver window of the last minute.
    """

    label: str
    figures: GpuFigures
    trouble: str | None = None
    busy: float | None = None
    why_no_utilization: str | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    throttle_reasons: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    verdict: ShownVerdict | None = None
    why_no_verdict: str | None = None
    windows: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class ShownProcess:
    """Process that was asked for, and the pace of its steps over the last minute if it reports any.

    Attributes:
        ended: True once it is gone.
        silent_s: Time since its newest step; None where no step is known.
        data_wait_fraction: Share of the time that its loop waited for data.
        why_no_steps: Reason, for people, why no pace is known; None where it is.
    """

    pid: int
    ended: bool = False
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    data_wait_fraction: float | None = None
    silent_s: float | None = None
    why_no_steps: str | None = None


@dataclass(frozen=True, kw_only=True)
class MonitorReading:
    """Reading of a monitor at one moment.

    Attributes:
        watched_s: Time since the watching began.
        driver: Version of the driver; empty where it does not say.
        process: The process that was asked for; None if all GPUs are watched.
        notes: Sentences, for people, on the choice of these GPUs.
    """

    t_s: float
    utc: datetime
    watched_s: float
    driver: str
    gpus: tuple[ShownGpu, ...]
    process: ShownProcess | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuSummary:
    """Summary of one GPU over all the time it was watched.

    Attributes:
        figures: Figures over this time, as far as a monitor keeps them: utilization, memory (of one reading every
            second or two), power and throttling.
        why_no_utilization: Reason, for people, why the last minute has no utilization; None where it has.
        verdict: Verdict on the last minute; None where there was not enough to judge by.
        trouble: Reason why it gave no readings in the end; None if it did.
    """

    label: str
    figures: GpuFigures
    highest_temperature_c: int | None
    why_no_utilization: str | None
    verdict: ShownVerdict | None
    trouble: str | None


@dataclass(frozen=True, kw_only=True)
class MonitorSummary:
    """Summary of a monitor at its end."""

    t_s: float
    utc: datetime
    watched_s: float
    gpus: tuple[GpuSummary, ...]
    process: ShownProcess | None


def reading_document(reading: MonitorReading) -> dict[str, Any]:
    """Return the JSON object of one moment; the figures of a GPU stand beside its other fields."""
    return {
        "format": FORMAT,
        "kind": "reading",
        **_stamp(reading),
        "driver": reading.driver or None,
        "notes": list(reading.notes),
        "process": None if reading.process is None else asdict(reading.process),
        "gpus": [_gpu(gpu) for gpu in reading.gpus],
    }


def summary_document(summary: MonitorSummary) -> dict[str, Any]:
    """Return the JSON object of the last line; the figures of a GPU stand beside its other fields."""
    return {
        "format": FORMAT,
        "kind": "summary",
        **_stamp(summary),
        "process": None if summary.process is None else asdict(summary.process),
        "gpus": [{**_figures(gpu, _OF_THE_SUMMARY), **_own_fields(gpu)} for gpu in summary.gpus],
    }


def _stamp(moment: MonitorReading | MonitorSummary) -> dict[str, Any]:
    return {
        "utc": moment.utc.isoformat(timespec="milliseconds"),
        "monotonic_s": round(moment.t_s, 3),
        "watched_s": round(moment.watched_s, 3),
    }


def _gpu(gpu: ShownGpu) -> dict[str, Any]:
    shown = {**_figures(gpu, _OF_A_READING), **_own_fields(gpu)}
    del shown["windows"]
    shown["utilization"] = shown.pop("busy")
    shown["minute_utilization"] = gpu.figures.utilization
    return shown


def _own_fields(gpu: ShownGpu | GpuSummary) -> dict[str, Any]:
    own = {item.name: getattr(gpu, item.name) for item in fields(gpu) if item.name != "figures"}
    return {**own, "verdict": None if gpu.verdict is None else asdict(gpu.verdict)}


def _figures(gpu: ShownGpu | GpuSummary, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(gpu.figures, name) for name in names}
