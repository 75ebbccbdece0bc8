"""Section of the trainings: their speed against what was tuned, and alarms with their causes."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from autotune.daemon.trainings.training_folder import is_training
from autotune.daemon.web.daemon_view import TrainingView
from autotune.daemon.web.page_text import line
from autotune.daemon.web.recent_hour import STRETCH_S, RecentHour, ends_utc
from autotune.daemon.web.sections.gpus_section import HistoryPart
from autotune.daemon.web.sections.study_progress import number
from autotune.files import read_tail

_MOST_TRAININGS = 40
_MOST_ALARMS = 20
_NEWEST_FOLDERS = 60
_TOLD = "told.jsonl"
_TOLD_BYTES = 64 << 10
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
    """Alarms that were told of trainings, by the files beside them; a file is read when it has grown.

    Args:
        folder: Folder of all trainings.
    """

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
        return sorted(alarms, key=lambda alarm: (alarm["is_open"], alarm["utc"]), reverse=True)[:_MOST_ALARMS]

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
        content, _ = read_tail(path, _TOLD_BYTES)
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
    """Return the alarm of a line that was told; None if it is none."""
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
