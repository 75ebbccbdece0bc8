"""State of the page as a JSON document below 200 kB, GPU readings, and Prometheus metrics.

External text has no control characters and a bounded length.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from autotune.clock import Clock
from autotune.daemon.advice import Advice, Recommendations
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import Queue, QueueEntry, shown_note
from autotune.daemon.trainings import EVENTS
from autotune.daemon.web.search_section import Event, SearchFollower, clean, event_file_of, events_of, number
from autotune.errors import AutotuneError
from autotune.files import json_object, read_tail
from autotune.measure.gpu.driver import Device, Driver, DriverError, GpuFacts, Trouble, gpus, if_known, reasons_of
from autotune.records import Ending
from autotune.report.plain_text import value_text
from autotune.trial.step_files import LineTail
from autotune.trial.trainings import is_training

_MOST_GPUS, _MOST_TRAININGS = 32, 40
_STEPS = {"utilization": 0.01, "memory_used_bytes": 16 << 20, "power_w": 1, "power_limit_w": 1}
"""Resolution of GPU readings, because each change of the document is sent to all pages."""
_ALARMS = ("slower_than_confirmed", "slower", "recovered")
Part = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class View:
    """State of the daemon that isn't in files: `Service.status`, and GPU readings or why there are none."""

    status: Mapping[str, Any]
    gpus: tuple[Sample, ...] = ()
    why_no_gpus: str | None = None


class PageState:
    """State of the page, from the daemon's status and files."""

    def __init__(self, home: DaemonHome, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._view: View | None = None
        self._hours: dict[str, RecentHour] = {}  # by UUID of a GPU, or id of a training
        self._queue = Queue(home.queue, clock)
        self._entries: Sequence[QueueEntry] = ()
        self._advices = Recommendations(home.advice)
        self._trainings = home.trainings
        self._search = SearchFollower(self._queue)

    def note(self, view: View) -> None:
        """Set the daemon's state, and add it to the history."""
        with self._lock:
            self._view, now_s = view, self._clock.now_s()
            for sample in view.gpus[:_MOST_GPUS]:
                used, total = sample.get("memory_used_bytes"), sample.get("memory_total_bytes")
                memory = None if used is None or not total else used / total
                known = {"utilization": sample.get("utilization"), "memory": memory, "power_w": sample.get("power_w")}
                self._hours.setdefault(sample["uuid"], RecentHour()).add(sample["t_s"], **known)
            for one in view.status["trainings"][:_MOST_TRAININGS]:
                self._hours.setdefault(one["id"], RecentHour()).add(now_s, samples_per_s=one["samples_per_s"])
            self._hours = {id: hour for id, hour in self._hours.items() if now_s - hour.last_s < 3600.0}

    def document(self) -> Part | None:
        """Return the document; None before the first `note`."""
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
                "utc": now.isoformat(timespec="seconds"),  # the only difference if nothing has changed
                "host": socket.gethostname(),
                **clean(sections),
                "search": self._search.section(self._entries),
            }

    def _history(self, id: str) -> Part:
        now_s = self._clock.now_s()
        ends = self._clock.utc() + timedelta(seconds=INTERVAL_S - now_s % INTERVAL_S)
        series = self._hours[id].series(now_s) if id in self._hours else {}
        return {"stretch_s": INTERVAL_S, "ends_utc": ends.isoformat(timespec="seconds"), "series": series}

    def _gpus(self, view: View) -> Part:
        trainings = {training["pid"]: training["name"] for training in view.status["trainings"]}
        shown = view.gpus[:_MOST_GPUS]
        return {
            "why_none": None if view.gpus else view.why_no_gpus or "no readings",
            "left_out": len(view.gpus) - len(shown),
            "devices": [{**_gpu(sample, trainings), "history": self._history(sample["uuid"])} for sample in shown],
        }

    def _of_trainings(self, trainings: Sequence[Mapping[str, Any]]) -> Part:
        shown = [{**_training(one), "history": self._history(one["id"])} for one in trainings[:_MOST_TRAININGS]]
        alarms = _newest_alarms(self._trainings, {one["id"] for one in trainings})
        return {"trainings": shown, "left_out": len(trainings) - len(shown), "alarms": alarms}


def _queue(entries: Sequence[QueueEntry], reasons: Mapping[str, str]) -> Part:
    """Return open entries in order, then closed ones, newest first."""
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
            "note": shown_note(entry),
            "gain": entry.answer.ratio if entry.answer and entry.answer.is_confirmed else None,
        }
        for entry in shown
    ]
    return {"entries": parts, "left_out": len(entries) - len(shown)}


def _advices(recommendations: Sequence[Advice]) -> Part:
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
            "command": one.command,
            # then only `autotune apply --all` applies it
            "may_learn_more_slowly": one.may_learn_more_slowly,
        }
        for one in (advice.now() for advice in list(reversed(recommendations))[:12])
    ]
    return {"advice": shown, "left_out": len(recommendations) - len(shown)}


def _training(training: Mapping[str, Any]) -> Part:
    confirmed, speed = training["confirmed_samples_per_s"], training["samples_per_s"]
    ratio = round(speed / confirmed, 3) if speed is not None and confirmed else None
    speeds = {"samples_per_s": number(speed), "confirmed_samples_per_s": number(confirmed), "ratio": ratio}
    return {**training, **speeds}


def _newest_alarms(folder: Path, running: Collection[str]) -> list[Part]:
    """Return the newest alarms; the last of a running training is open until it recovers."""
    try:
        names = sorted(name for name in os.listdir(folder) if is_training(name))[-60:]
    except OSError:
        return []
    alarms = []
    for name in names:
        content, _ = read_tail(folder / name / EVENTS, 64 << 10)
        reported = [event for line in content.splitlines() if (event := json_object(line)).get("event") in _ALARMS]
        for event in reported:
            alarm = {
                "key": f"{event.get('training')} {event.get('key')}",
                "kind": event["event"],
                "utc": str(event.get("utc")),
                "message": str(event.get("message")),
                "is_open": event is reported[-1] and event["event"] != "recovered" and name in running,
            }
            alarms.append(alarm)
    return sorted(alarms, key=lambda alarm: (alarm["is_open"], alarm["utc"]), reverse=True)[:20]


def _gpu(sample: Sample, trainings: Mapping[int, str]) -> Part:
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


INTERVAL_S = 30.0
_INTERVALS = 120


class RecentHour:
    """Means by name over the last 120 intervals of 30 s."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self._sums: dict[int, dict[str, tuple[float, int]]] = {}  # by interval and name: sum, count

    def add(self, t_s: float, **values: float | None) -> None:
        self.last_s = t_s
        sums = self._sums.setdefault(math.floor(t_s / INTERVAL_S), {})
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1
        if len(self._sums) > _INTERVALS:
            del self._sums[min(self._sums)]

    def series(self, now_s: float) -> dict[str, list[float | None]]:
        """Return the means from the first known interval to now."""
        newest = math.floor(now_s / INTERVAL_S)
        known = {place: sums for place, sums in self._sums.items() if sums and newest - place < _INTERVALS}
        names = dict.fromkeys(name for sums in known.values() for name in sums)
        places = range(min(known, default=newest + 1), newest + 1)
        return {name: [_mean(known.get(place, {}).get(name)) for place in places] for name in names}


def _mean(sums: tuple[float, int] | None) -> float | None:
    return None if sums is None else float(f"{sums[0] / sums[1]:.4g}")  # keeps the JSON short


# GPU readings.


Sample = Mapping[str, Any]
"""Reading of one GPU: ``index``, ``uuid``, ``name`` and values by name; None if unknown."""

_RETRY_S = 60.0  # after a missing or failing driver


def _utilization(device: Device) -> float | None:
    percent = device.busy_percent()
    return percent / 100 if percent <= 100 else None  # some drivers report far more than 100


_READINGS: Mapping[str, Callable[[Device], Any]] = {
    "utilization": _utilization,  # since the last reading
    "memory_used_bytes": lambda device: device.memory().used_bytes,
    "memory_total_bytes": lambda device: device.memory().total_bytes,
    "power_w": Device.power_w,
    "power_limit_w": lambda device: device.power_limits_w()[0],
    "energy_j": Device.energy_j,  # since the driver was loaded
    "sm_clock_mhz": Device.sm_clock_mhz,
    "temperature_c": Device.temperature_c,
    "throttled_by": lambda device: list(reasons_of(device.clock_reasons())),
}


class GpuReader:
    """Reader of all GPUs; `own_pids` returns the searches' processes."""

    def __init__(self, clock: Clock, own_pids: Callable[[], Collection[int]]) -> None:
        self._clock = clock
        self._own_pids = own_pids
        self._driver: Driver | None = None
        self._devices: list[tuple[GpuFacts, Device]] = []
        self._due_s = -math.inf
        self.samples: tuple[Sample, ...] = ()
        self.why_none: str | None = "not measured yet"

    def poll(self) -> None:
        """Read every GPU once; reopen a failing driver after a minute."""
        now_s = self._clock.now_s()
        if now_s < self._due_s:
            return
        try:
            if self._driver is None:
                self._open()
            own = self._own_pids()
            self.samples = tuple(self._sample(facts, device, own, now_s) for facts, device in self._devices)
        except DriverError as error:
            self.samples, self.why_none = (), error.for_people
            if self._driver is not None:
                self._driver.close()
            self._driver, self._devices = None, []
        self._due_s = now_s if self.samples else now_s + _RETRY_S

    def _open(self) -> None:
        inventory = gpus()
        self.why_none = inventory.why_none
        if inventory.gpus:
            self._driver = Driver()
            self._devices = [(facts, self._driver.device(facts.uuid)) for facts in inventory.gpus]

    def _sample(self, facts: GpuFacts, device: Device, own: Collection[int], now_s: float) -> Sample:
        known = {"t_s": now_s, "index": facts.index, "uuid": facts.uuid, "name": facts.name}
        try:
            readings = {name: if_known(lambda read=read: read(device)) for name, read in _READINGS.items()}  # type: ignore[misc]  # default argument
            return {**known, **readings, "users": self._users(device, own), "why_unknown": None}
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            return {**known, "why_unknown": error.for_people}

    def _users(self, device: Device, own: Collection[int]) -> list[dict[str, Any]]:
        driver = self._driver
        assert driver is not None, "the device belongs to an open driver"
        users = []
        for holder in if_known(device.holders) or ():
            name = if_known(lambda pid=holder.pid: driver.process_name(pid))  # type: ignore[misc]  # default argument
            is_own = holder.pid in own
            users.append({"pid": holder.pid, "name": name, "memory_bytes": holder.memory_bytes, "is_own": is_own})
        return users


# Prometheus metrics (OpenMetrics 1.0): base units, absent if unknown. Counters start with this process and never
# decrease: earlier samples and energy don't count, and a reset source continues from the counted value.


class Metrics(Collector):
    """Metrics of the daemon; `trials` returns their number by ending."""

    def __init__(self, view: Callable[[], View | None], trials: Callable[[], Mapping[str, int]]) -> None:
        self._view = view
        self._trials = trials
        self._energy_j: dict[str, tuple[float, float]] = {}  # by GPU: last reading, counted energy
        self._registry = CollectorRegistry()  # separate, because the default one includes process metrics
        self._registry.register(self)

    def text(self) -> tuple[bytes, str]:
        """Return the metrics and their content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]  # untyped

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is None:
            return
        yield InfoMetricFamily("autotune_build", "Version of autotune.", value={"version": view.status["autotune"]})
        gpus = {gpu["uuid"]: gpu for gpu in view.gpus}
        trainings = {training["id"]: training for training in view.status["trainings"]}
        used = {uuid: gpu.get("utilization") for uuid, gpu in gpus.items()}
        memory = {uuid: gpu.get("memory_used_bytes") for uuid, gpu in gpus.items()}
        energy = {uuid: self._drawn_j(uuid, gpu.get("energy_j")) for uuid, gpu in gpus.items()}
        speed = {
            id: one["samples_per_s"] / one["confirmed_samples_per_s"]
            for id, one in trainings.items()
            if one["samples_per_s"] is not None and one["confirmed_samples_per_s"]
        }
        samples = {id: one["samples"] for id, one in trainings.items()}
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for make, name, words, label, values in (
            (gauge, "gpu_utilization_ratio", "Share of time in which kernels ran.", "gpu_uuid", used),
            (gauge, "gpu_memory_used_bytes", "Memory used by all processes.", "gpu_uuid", memory),
            (counter, "gpu_energy_joules", "Energy used since the start of the daemon.", "gpu_uuid", energy),
            (gauge, "training_speed_ratio", "Speed over the confirmed speed.", "training", speed),
            (counter, "training_samples", "Samples processed by watched trainings.", "training", samples),
            (counter, "trials", "Trials of this daemon's searches.", "ending", dict(sorted(self._trials().items()))),
        ):
            family = make(f"autotune_{name}", words, labels=[label])
            for key, value in values.items():
                if value is not None:
                    family.add_metric([key], value)
            yield family

    def _drawn_j(self, uuid: str, reading_j: float | None) -> float | None:
        """Return the energy since the first reading, across resets of the counter."""
        if reading_j is None:
            return None
        last_j, counted_j = self._energy_j.get(uuid, (reading_j, 0.0))
        counted_j += reading_j - last_j if reading_j >= last_j else reading_j
        self._energy_j[uuid] = reading_j, counted_j
        return counted_j


class TrialEndings:
    """Counter of trials by ending since the first poll; `counts` is replaced, not changed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._files: dict[Path, LineTail] | None = None

    def poll(self, entries: Sequence[QueueEntry]) -> None:
        """Count new trials of running searches and of those that just ended."""
        running = {path for entry in entries if (path := event_file_of(entry)) is not None}
        before = self._files or {}
        files = before | {path: LineTail(path, longest_bytes=8 << 20) for path in running - before.keys()}
        endings = (_ending(event) for tail in files.values() for event in events_of(tail))
        new = Counter(ending for ending in endings if ending is not None)
        if self._files is not None:
            self.counts = self.counts + new
        self._files = {path: tail for path, tail in files.items() if path in running}


def _ending(event: Event) -> str | None:
    try:
        return Ending(event["trial"]["ending"]).value if event["event"] == "TrialEnded" else None
    except (LookupError, TypeError, ValueError):
        return None
