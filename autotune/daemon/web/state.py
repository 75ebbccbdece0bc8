"""State of the page: one JSON-ready document of all that it shows.

Text that comes from trainers, configs and the driver has no control characters and a bounded length; absent is null.
The document stays below 200 kB whatever there is. Actions name the ids in it: of an entry for ``pause``, ``resume``
and ``remove``, of an advice for ``apply``.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.daemon.advice import Advice, Advices
from autotune.daemon.home import DaemonHome, json_object
from autotune.daemon.queue import Entry, Queue
from autotune.daemon.training_folder import EVENTS, is_training
from autotune.daemon.web.gpus import Sample
from autotune.daemon.web.search_section import SearchFollower, clean, number
from autotune.errors import AutotuneError
from autotune.files import read_tail
from autotune.report.plain_text import value_text

_MOST_GPUS, _MOST_TRAININGS = 32, 40
_STEPS = {"utilization": 0.01, "memory_used_bytes": 16 << 20, "power_w": 1, "power_limit_w": 1}
"""Of readings of GPUs: finer changes say nothing, and would have everything sent again."""
_ALARMS = ("slower_than_confirmed", "slower", "recovered")
Part = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """Knowledge of the daemon that is in no file, at one moment.

    Attributes:
        status: What its loop says, see `Service.status`.
        why_no_gpus: Reason, for people, why nothing is known of any GPU; None otherwise.
    """

    status: Mapping[str, Any]
    gpus: tuple[Sample, ...] = ()
    why_no_gpus: str | None = None


class PageState:
    """Maker of the page's state, from what the daemon's loop says and from the files that it keeps."""

    def __init__(self, home: DaemonHome, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._view: View | None = None
        self._hours: dict[str, RecentHour] = {}  # by UUID of a GPU, or id of a training
        self._queue = Queue(home.queue, clock)
        self._entries: Sequence[Entry] = ()
        self._advices = Advices(home.advice)
        self._trainings = home.trainings
        self._search = SearchFollower(self._queue)

    def note(self, view: View) -> None:
        """Take over what the daemon knows now, and add it to the last hour."""
        with self._lock:
            self._view, now_s = view, self._clock.now_s()
            for sample in view.gpus[:_MOST_GPUS]:
                used, total = sample.get("memory_used_bytes"), sample.get("memory_total_bytes")
                memory = None if used is None or not total else used / total
                known = {"utilization": sample.get("utilization"), "memory": memory, "power_w": sample.get("power_w")}
                self._hours.setdefault(sample["uuid"], RecentHour()).add(sample["t_s"], **known)
            for one in view.status["trainings"][:_MOST_TRAININGS]:
                self._hours.setdefault(one["id"], RecentHour()).add(now_s, samples_per_s=one["samples_per_s"])
            self._hours = {id: hour for id, hour in self._hours.items() if now_s - hour.last_s < _STRETCHES * STRETCH_S}

    def document(self, *, actions: bool = False, csrf: str | None = None) -> Part | None:
        """Return the state; None before the first `note`.

        Args:
            csrf: Token that an action has to bring.
        """
        with self._lock:
            view = self._view
            if view is None:
                return None
            status, now = view.status, self._clock.utc()
            try:
                self._entries, unread = self._queue.entries(), None
            except AutotuneError as error:
                unread = str(error)
            names = ("autotune", "pid", "started_utc", "hosted", "machine", "trouble")
            sections = {
                "queue": {**_queue(self._entries, status["reasons"]), "trouble": unread},
                "gpus": self._gpus(view),
                "trainings": self._of_trainings(status["trainings"]),
                "advice": _advices(self._advices.all()),
                "daemon": {**{name: status[name] for name in names}, "host": socket.gethostname()},
            }
            return {
                "format": 1,
                "utc": now.isoformat(timespec="seconds"),  # all that differs if nothing has changed
                "host": socket.gethostname(),
                **clean(sections),
                "search": self._search.section(self._entries),
                "actions": actions,
                "csrf": csrf if actions else None,
            }

    def _history(self, id: str) -> Part:
        """Return the last hour of a GPU or a training; its last stretch ends at `ends_utc`."""
        now_s = self._clock.now_s()
        ends = self._clock.utc() + timedelta(seconds=STRETCH_S - now_s % STRETCH_S)
        series = self._hours[id].series(now_s) if id in self._hours else {}
        return {"stretch_s": STRETCH_S, "ends_utc": ends.isoformat(timespec="seconds"), "series": series}

    def _gpus(self, view: View) -> Part:
        trainings = {training["pid"]: training["name"] for training in view.status["trainings"]}
        shown = view.gpus[:_MOST_GPUS]
        return {
            "why_none": None if view.gpus else view.why_no_gpus or "nothing is known of a GPU here",
            "left_out": len(view.gpus) - len(shown),
            "devices": [{**_gpu(sample, trainings), "history": self._history(sample["uuid"])} for sample in shown],
        }

    def _of_trainings(self, trainings: Sequence[Mapping[str, Any]]) -> Part:
        shown = [{**_training(one), "history": self._history(one["id"])} for one in trainings[:_MOST_TRAININGS]]
        alarms = _newest_alarms(self._trainings, {one["id"] for one in trainings})
        return {"trainings": shown, "left_out": len(trainings) - len(shown), "alarms": alarms}


def _queue(entries: Sequence[Entry], reasons: Mapping[str, str]) -> Part:
    """Return the section of the queue: the open entries in their order, then the closed ones, newest first."""
    opened = [entry for entry in entries if entry.state.is_open]
    closed = [entry for entry in reversed(entries) if not entry.state.is_open]
    shown = [*opened[:60], *closed[:20]]
    parts = [
        {
            "id": entry.id,
            "number": entry.number,
            "state": entry.state.value,
            "config": entry.config,
            "budget_s": entry.budget_s,
            "used_s": round(entry.spent_s),
            "start": str(entry.start),
            "reason": entry.shown_reason(reasons),
            "note": entry.note,
            "gain": entry.answer.ratio if entry.answer and entry.answer.is_confirmed else None,
        }
        for entry in shown
    ]
    return {"entries": parts, "left_out": len(entries) - len(shown)}


def _advices(advices: Sequence[Advice]) -> Part:
    shown = [
        {
            "id": one.id,
            "config": one.config,
            "state": one.state,
            "ratio": one.ratio,
            "changes": [
                {**asdict(change), "old": value_text(change.old), "new": value_text(change.new)}
                for change in one.changes[:30]
            ],
            "diff": one.diff,
            "why": one.why[:8],
            "made_utc": one.made_utc,
            "applied_utc": one.applied_utc,
            # It is a question to its user then, which `autotune apply` asks in full.
            "may_learn_more_slowly": one.may_learn_more_slowly,
        }
        for one in list(reversed(advices))[:12]
    ]
    return {"advice": shown, "left_out": len(advices) - len(shown)}


def _training(training: Mapping[str, Any]) -> Part:
    """Return a training with its speed over the confirmed one."""
    confirmed, speed = training["confirmed_samples_per_s"], training["samples_per_s"]
    ratio = round(speed / confirmed, 3) if speed is not None and confirmed else None
    speeds = {"samples_per_s": number(speed), "confirmed_samples_per_s": number(confirmed), "ratio": ratio}
    return {**training, **speeds}


def _newest_alarms(folder: Path, going_on: Collection[str]) -> list[Part]:
    """Return the newest alarms; one is open while its training goes on and nothing newer was told of it."""
    try:
        names = sorted(name for name in os.listdir(folder) if is_training(name))[-60:]
    except OSError:
        return []
    alarms = []
    for name in names:
        path = folder / name / EVENTS
        try:
            status = path.lstat()
        except OSError:
            continue
        told = _alarms(path, status.st_size, status.st_mtime_ns)
        for alarm in told:
            is_open = alarm is told[-1] and alarm["kind"] != "recovered" and name in going_on
            alarms.append({**alarm, "is_open": is_open})
    return sorted(alarms, key=lambda alarm: (alarm["is_open"], alarm["utc"]), reverse=True)[:20]


@lru_cache(maxsize=64)  # a file is read when it has grown
def _alarms(path: Path, _size: int, _mtime_ns: int) -> list[Part]:
    """Return the alarms that were told of a training."""
    content, _ = read_tail(path, 64 << 10)
    told = [event for line in content.splitlines() if (event := json_object(line)).get("event") in _ALARMS]
    return [
        {
            "key": f"{event.get('training')} {event.get('key')}",
            "kind": event["event"],
            "utc": str(event.get("utc")),
            "message": str(event.get("message")),
        }
        for event in told
    ]


def _gpu(sample: Sample, trainings: Mapping[int, str]) -> Part:
    """Return one GPU, with whose the processes on it are."""
    part = {name: value for name, value in sample.items() if name not in ("t_s", "energy_j")}
    for name, step in _STEPS.items():
        if part.get(name) is not None:
            part[name] = round(part[name] // step * step, 2)
    users = [
        {
            "pid": user["pid"],
            "name": clean(trainings.get(user["pid"]) or user["name"], 100),
            "memory_bytes": user["memory_bytes"],
            "whose": "search" if user["is_own"] else "training" if user["pid"] in trainings else "other",
        }
        for user in sample.get("users", ())[:12]
    ]
    return {**part, "users": users, "users_left_out": len(sample.get("users", ())) - len(users)}


STRETCH_S = 30.0
_STRETCHES = 120


class RecentHour:
    """Means of some quantities over stretches of 30 s, the last 120 of them."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self._sums: dict[int, dict[str, tuple[float, int]]] = {}  # by stretch and name: sum, count

    def add(self, t_s: float, **values: float | None) -> None:
        """Add a reading at a monotonic time, which is not below an earlier one; None is not known."""
        self.last_s = t_s
        sums = self._sums.setdefault(math.floor(t_s / STRETCH_S), {})
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1
        if len(self._sums) > _STRETCHES:
            del self._sums[min(self._sums)]

    def series(self, now_s: float) -> dict[str, list[float | None]]:
        """Return the means of the last hour, the oldest first, from the first known stretch on; None is not known."""
        newest = math.floor(now_s / STRETCH_S)
        known = {place: sums for place, sums in self._sums.items() if sums and newest - place < _STRETCHES}
        names = dict.fromkeys(name for sums in known.values() for name in sums)
        places = range(min(known, default=newest + 1), newest + 1)
        return {name: [_mean(known.get(place, {}).get(name)) for place in places] for name in names}


def _mean(sums: tuple[float, int] | None) -> float | None:
    return None if sums is None else float(f"{sums[0] / sums[1]:.4g}")  # JSON is short then
