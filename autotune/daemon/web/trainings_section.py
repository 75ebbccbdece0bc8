"""Section of the trainings: their speed against what was tuned, and alarms with their causes."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

from autotune.daemon.training_folder import is_training
from autotune.daemon.web.queue_section import line
from autotune.daemon.web.search_section import number
from autotune.daemon.web.view import DaemonView, GpuSample, GpuUser, TrainingView
from autotune.files import read_tail

_MOST_TRAININGS = 40
_NEWEST_FOLDERS = 60
_TOLD = "told.jsonl"
_ALARMS = ("slower_than_confirmed", "slower", "recovered")


class TrainingPart(TypedDict):
    """Training that goes on; `ratio` is its speed over the confirmed one, `expected` where that should be."""

    id: str
    name: str
    pid: int
    started_utc: str
    steps: int
    samples_per_s: float | None
    confirmed_samples_per_s: float | None
    ratio: float | None
    expected: tuple[float, float] | None
    is_slow: bool
    history: HistoryPart


class AlarmPart(TypedDict):
    """Alarm about a training, or that it is over; `is_open` as long as it is so."""

    key: str
    kind: str
    training: str
    utc: str
    message: str
    speed_ratio: float | None
    cause: str | None
    evidence: str | None
    is_open: bool


class TrainingsPart(TypedDict):
    """Section of the trainings; alarms newest first."""

    trainings: list[TrainingPart]
    left_out: int
    alarms: list[AlarmPart]


class TrainingHistories:
    """Speeds of the trainings in the last hour."""

    def __init__(self) -> None:
        self._hours: dict[str, RecentHour] = {}

    def note(self, trainings: Sequence[TrainingView], now_s: float) -> None:
        """Add the speeds of now."""
        shown = trainings[:_MOST_TRAININGS]
        self._hours = {one.id: self._hours.get(one.id) or RecentHour("samples_per_s") for one in shown}
        for one in shown:
            self._hours[one.id].add(now_s, samples_per_s=one.samples_per_s)

    def of(self, id: str, now_s: float, now: datetime) -> HistoryPart:
        """Return the last hour of one training."""
        hour = self._hours.get(id)
        series = hour.series(now_s, digits=4) if hour else {}
        return HistoryPart(stretch_s=STRETCH_S, ends_utc=ends_utc(now_s, now), series=series)


class ToldAlarms:
    """Alarms that were told of trainings, by the files beside them; a file is read when it has grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], list[AlarmPart]]] = {}

    def newest(self, alive: Sequence[TrainingView]) -> list[AlarmPart]:
        """Return the newest alarms; one is open while its training goes on and nothing newer was told of it."""
        try:
            names = sorted(path.name for path in self._folder.iterdir() if is_training(path.name))[-_NEWEST_FOLDERS:]
        except OSError:
            names = []
        self._known = {name: known for name in names if (known := self._read(name)) is not None}
        going_on = {one.id for one in alive}
        alarms: list[AlarmPart] = []
        for name, (_, told) in self._known.items():
            for place, alarm in enumerate(told):
                is_last = place == len(told) - 1 and alarm["kind"] != "recovered"
                alarms.append({**alarm, "is_open": is_last and name in going_on})
        return sorted(alarms, key=lambda alarm: (alarm["is_open"], alarm["utc"]), reverse=True)[:20]

    def _read(self, name: str) -> tuple[tuple[int, int], list[AlarmPart]] | None:
        path = self._folder / name / _TOLD
        try:
            status = path.lstat()
        except OSError:
            return None
        stamp = status.st_size, status.st_mtime_ns
        known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known
        content, _ = read_tail(path, 64 << 10)
        found = [_alarm(line) for line in content.splitlines()]
        return stamp, [alarm for alarm in found if alarm is not None]


def trainings_section(
    trainings: Sequence[TrainingView],
    histories: TrainingHistories,
    alarms: list[AlarmPart],
    now_s: float,
    now: datetime,
) -> TrainingsPart:
    """Return the section of the trainings."""
    shown = trainings[:_MOST_TRAININGS]
    return TrainingsPart(
        trainings=[_training(one, histories.of(one.id, now_s, now)) for one in shown],
        left_out=len(trainings) - len(shown),
        alarms=alarms,
    )


def _training(view: TrainingView, history: HistoryPart) -> TrainingPart:
    confirmed, speed = view.confirmed_samples_per_s, view.samples_per_s
    return TrainingPart(
        id=view.id,
        name=line(view.name) or "",
        pid=view.pid,
        started_utc=view.started_utc,
        steps=view.steps,
        samples_per_s=number(speed),
        confirmed_samples_per_s=number(confirmed),
        ratio=round(speed / confirmed, 3) if speed is not None and confirmed else None,
        expected=view.expected,
        is_slow=view.is_slow,
        history=history,
    )


def _alarm(told: bytes) -> AlarmPart | None:
    try:
        event: Any = json.loads(told)
        if event["event"] not in _ALARMS:
            return None
        cause = event.get("cause")
        cause = cause if isinstance(cause, Mapping) else {}
        return AlarmPart(
            key=line(f"{event['training']} {event['key']}", 120) or "",
            kind=event["event"],
            training=line(str(event["name"])) or "",
            utc=line(str(event["utc"]), 40) or "",
            message=line(str(event["message"]), 500) or "",
            speed_ratio=number(event["speed_ratio"]),
            cause=line(cause.get("kind"), 60),
            evidence=line(cause.get("text"), 200),
            is_open=False,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


MOST_GPUS = 32
_MOST_USERS = 12
_MEMORY_STEP = 16 << 20  # finer changes say nothing, and would have everything sent again


class UserPart(TypedDict):
    """Process on a GPU; `whose` is ``search``, ``training`` or ``other``."""

    pid: int
    name: str | None
    memory_bytes: int | None
    whose: str


class HistoryPart(TypedDict):
    """Means over the last hour, the oldest first; the last stretch ends at `ends_utc`."""

    stretch_s: float
    ends_utc: str
    series: dict[str, list[float | None]]


class GpuPart(TypedDict):
    """One GPU; null is "not known"."""

    index: int
    uuid: str
    name: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    throttled_by: list[str] | None
    users: list[UserPart]
    users_left_out: int
    why_unknown: str | None
    history: HistoryPart


class GpusPart(TypedDict):
    """Section of the GPUs."""

    why_none: str | None
    left_out: int
    devices: list[GpuPart]


class GpuHistories:
    """Readings of all GPUs of the last hour."""

    def __init__(self) -> None:
        self._hours: dict[str, RecentHour] = {}

    def note(self, samples: Sequence[GpuSample]) -> None:
        """Add readings; one that was added before counts once."""
        for sample in samples[:MOST_GPUS]:
            hour = self._hours.setdefault(sample.uuid, RecentHour("utilization", "memory", "power_w"))
            hour.add(
                sample.t_s,
                utilization=sample.utilization,
                memory=memory_fraction(sample),
                power_w=sample.power_w,
            )

    def of(self, uuid: str, now_s: float, now: datetime) -> HistoryPart:
        """Return the last hour of one GPU."""
        hour = self._hours.get(uuid)
        series = hour.series(now_s) if hour else {}
        return HistoryPart(stretch_s=STRETCH_S, ends_utc=ends_utc(now_s, now), series=series)


def gpus_section(view: DaemonView, histories: GpuHistories, now_s: float, now: datetime) -> GpusPart:
    """Return the section of the GPUs."""
    trainings = {training.pid: training.name for training in view.trainings}
    return GpusPart(
        why_none=None if view.gpus else line(view.why_no_gpus) or "nothing is known of a GPU here",
        left_out=max(0, len(view.gpus) - MOST_GPUS),
        devices=[_gpu(sample, trainings, histories.of(sample.uuid, now_s, now)) for sample in view.gpus[:MOST_GPUS]],
    )


def memory_fraction(sample: GpuSample) -> float | None:
    """Return the share of a GPU's memory in use; None where it is not known."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return None if used is None or not total else used / total


def _gpu(sample: GpuSample, trainings: Mapping[int, str], history: HistoryPart) -> GpuPart:
    used = sample.memory_used_bytes
    return GpuPart(
        index=sample.index,
        uuid=line(sample.uuid, 80) or "",
        name=line(sample.name, 80) or "",
        utilization=None if sample.utilization is None else round(sample.utilization, 2),
        memory_used_bytes=None if used is None else used // _MEMORY_STEP * _MEMORY_STEP,
        memory_total_bytes=sample.memory_total_bytes,
        power_w=None if sample.power_w is None else round(sample.power_w),
        power_limit_w=None if sample.power_limit_w is None else round(sample.power_limit_w),
        sm_clock_mhz=sample.sm_clock_mhz,
        temperature_c=sample.temperature_c,
        throttled_by=None if sample.throttled_by is None else [line(one, 60) or "" for one in sample.throttled_by],
        users=[_user(user, trainings) for user in sample.users[:_MOST_USERS]],
        users_left_out=max(0, len(sample.users) - _MOST_USERS),
        why_unknown=line(sample.why_unknown),
        history=history,
    )


def _user(user: GpuUser, trainings: Mapping[int, str]) -> UserPart:
    training = trainings.get(user.pid)
    return UserPart(
        pid=user.pid,
        name=line(training or user.name, 100),
        memory_bytes=user.memory_bytes,
        whose="search" if user.is_own else "training" if training else "other",
    )


STRETCH_S = 30.0
STRETCHES = 120


class RecentHour:
    """Means of some quantities over stretches of 30 s, the last 120 of them."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._done: deque[tuple[int, tuple[float | None, ...]]] = deque(maxlen=STRETCHES)
        self._place: int | None = None
        self._sums = [0.0] * len(names)
        self._counts = [0] * len(names)
        self._last_s = -math.inf

    def add(self, t_s: float, **values: float | None) -> None:
        """Add a reading; one of a time that was given before counts once.

        Args:
            t_s: Monotonic time; not below an earlier one.
            values: Of each quantity; None where it is not known.
        """
        if t_s <= self._last_s:
            return
        self._last_s = t_s
        place = math.floor(t_s / STRETCH_S)
        if self._place is not None and place != self._place:
            self._done.append((self._place, self._means()))
            self._sums, self._counts = [0.0] * len(self._names), [0] * len(self._names)
        self._place = place
        for index, name in enumerate(self._names):
            value = values.get(name)
            if value is not None and math.isfinite(value):
                self._sums[index] += value
                self._counts[index] += 1

    def series(self, now_s: float, digits: int = 3) -> dict[str, list[float | None]]:
        """Return the means of the last hour, the oldest first; None where nothing is known.

        Nothing before the first known stretch is given, so that a short history is a short list; nothing at all where
        no quantity is known.
        """
        newest = math.floor(now_s / STRETCH_S)
        known = {place: means for place, means in self._done if newest - place < STRETCHES}
        if self._place is not None and newest - self._place < STRETCHES:
            known[self._place] = self._means()
        known = {place: means for place, means in known.items() if any(mean is not None for mean in means)}
        if not known:
            return {}
        span = range(min(known), newest + 1)
        rows = [known.get(place) for place in span]
        return {
            name: [None if row is None or row[index] is None else _rounded(row[index], digits) for row in rows]
            for index, name in enumerate(self._names)
        }

    def _means(self) -> tuple[float | None, ...]:
        return tuple(total / count if count else None for total, count in zip(self._sums, self._counts, strict=True))


def ends_utc(now_s: float, now: datetime) -> str:
    """Return the end of the stretch that holds a moment, ISO 8601: the right end of each picture of the last hour."""
    left_s = STRETCH_S - now_s % STRETCH_S
    return (now + timedelta(seconds=left_s)).isoformat(timespec="seconds")


def _rounded(value: float | None, digits: int) -> float | None:
    """Return a number with so many digits behind its first one, as JSON is short then."""
    return None if value is None else float(f"{value:.{digits}g}")
