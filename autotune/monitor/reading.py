"""What a monitor has seen at one moment, as people's screens and scripts get it, and its object for scripts.

The records here are filled by the command from what the measuring stage knows. Shares are 0..1, absent is None.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

FORMAT = 1
"""Version of the objects that ``monitor --json`` prints, one a line."""


@dataclass(frozen=True, kw_only=True)
class ShownVerdict:
    """What utilization did over the last minute.

    Attributes:
        pattern: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        low: Level of the lower driver windows.
        high: Level of the upper ones.
        mean: Average over the time that the windows cover.
        period_s: Length of a cycle; None unless the pattern is ``cyclic``.
        text: All that in a few words.
        meaning: What it usually means, and what usually helps.
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
        label: The driver's number for it, e.g. ``GPU 0``.
        trouble: Why it tells nothing at this moment; None while it does.
        utilization: Share of the newest second in which a kernel ran.
        minute_utilization: The same of the last minute.
        why_no_utilization: Why there is none, for people; None where there is.
        memory_used_bytes: In use by all.
        clock_reasons: Why its clocks are held down now; empty if nothing holds them.
        throttled_fraction: Share of the last minute's readings in which heat or a power brake did.
        throttle_reasons: Which of these.
        own_fraction: Share of the last minute in which kernels of the watched process and its children ran.
        foreign_fraction: The same for all others.
        sm_activity: Share of the multiprocessors that were busy in the last minute; asked for instances of GPUs alone,
            of which there is no utilization.
        absent: What the device never tells, and why, each for people.
        verdict: None while there is not enough to judge by; then `why_no_verdict` says what is missing.
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
class ShownProcess:
    """The process that was asked for, and the pace of its steps over the last minute if it reports any.

    Attributes:
        ended: Whether it is gone.
        silent_s: Time since its newest step; None where no step is known.
        data_wait_fraction: Share of the time that its loop waited for data.
        why_no_steps: Why no pace is known, for people; None where it is.
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
    """All that is shown at one moment.

    Attributes:
        t_s: Monotonic time.
        watched_s: Time since the watching began.
        driver: The driver's version; empty where it does not say.
        process: None if all GPUs are watched.
        notes: What has to be said about which GPUs these are, for people.
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
    """One GPU over all the time it was watched.

    Attributes:
        utilization: Mean share of time in which a kernel ran; None if it was not measured.
        peak_memory_bytes: Most that was in use by all, of one reading every second or two.
        power_w: Mean of the readings.
        highest_temperature_c: Highest of the readings.
        throttled_fraction: Share of the readings in which heat or a power brake held the clocks down.
        why_no_utilization: Why the last minute has none, for people; None where it has.
        verdict: That on the last minute; None where there was not enough to judge by.
        trouble: Why it told nothing in the end; None if it did.
    """

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
class MonitorSummary:
    """What is said in the end."""

    t_s: float
    utc: datetime
    watched_s: float
    gpus: tuple[GpuSummary, ...]
    process: ShownProcess | None


def reading_document(reading: MonitorReading) -> dict[str, Any]:
    """The object of one moment."""
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
    """The object of the last line."""
    return {
        "format": FORMAT,
        "kind": "summary",
        **_stamp(summary),
        "process": None if summary.process is None else asdict(summary.process),
        "gpus": [asdict(gpu) for gpu in summary.gpus],
    }


def _stamp(moment: MonitorReading | MonitorSummary) -> dict[str, Any]:
    return {
        "utc": moment.utc.isoformat(timespec="milliseconds"),
        "monotonic_s": round(moment.t_s, 3),
        "watched_s": round(moment.watched_s, 3),
    }


def _gpu(gpu: ShownGpu) -> dict[str, Any]:
    shown = {item.name: getattr(gpu, item.name) for item in fields(gpu) if item.name != "windows"}
    return {**shown, "verdict": None if gpu.verdict is None else asdict(gpu.verdict)}
