"""State of the page: one JSON-ready document of all that it shows; readings of the GPUs, and metrics.

Text that comes from trainers, configs and the driver has no control characters and a bounded length; absent is null.
The document stays below 200 kB whatever there is. Actions name the ids in it: of an entry for ``pause``, ``resume``
and ``remove``, of an advice for ``apply``.
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
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from autotune.clock import Clock
from autotune.daemon.advice import Advice, Advices
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
        self._entries: Sequence[QueueEntry] = ()
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


def _queue(entries: Sequence[QueueEntry], reasons: Mapping[str, str]) -> Part:
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
            "note": shown_note(entry),
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
            "command": one.command,
            # Its user decides then, by `autotune apply --all`.
            "may_learn_more_slowly": one.may_learn_more_slowly,
        }
        for one in (advice.now() for advice in list(reversed(advices))[:12])
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


# Readings of the GPUs.


Sample = Mapping[str, Any]
"""Reading of one GPU: its ``index``, ``uuid`` and ``name``, and what it says; None is "not known", never 0."""

_RETRY_S = 60.0  # after a driver that is not there, or does not answer


def _utilization(device: Device) -> float | None:
    percent = device.busy_percent()
    return percent / 100 if percent <= 100 else None  # drivers are known to give far more


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
    """Reader of all GPUs of this machine.

    Args:
        own_pids: Returns the processes of the daemon's own search.

    Attributes:
        samples: The newest reading of each GPU.
        why_none: Reason, for people, why there are none; None otherwise.
    """

    def __init__(self, clock: Clock, own_pids: Callable[[], Collection[int]]) -> None:
        self._clock = clock
        self._own_pids = own_pids
        self._driver: Driver | None = None
        self._devices: list[tuple[GpuFacts, Device]] = []
        self._due_s = -math.inf
        self.samples: tuple[Sample, ...] = ()
        self.why_none: str | None = "not looked at yet"

    def look(self) -> None:
        """Read every GPU once; a driver that does not answer is looked for anew a minute later."""
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
            readings = {name: if_known(lambda ask=ask: ask(device)) for name, ask in _READINGS.items()}  # type: ignore[misc]  # of a default argument
            return {**known, **readings, "users": self._users(device, own), "why_unknown": None}
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            return {**known, "why_unknown": error.for_people}

    def _users(self, device: Device, own: Collection[int]) -> list[dict[str, Any]]:
        """Return the processes on a GPU; a driver in a container may hide them."""
        driver = self._driver
        assert driver is not None, "its device is in hand"
        found = []
        for holder in if_known(device.holders) or ():
            name = if_known(lambda pid=holder.pid: driver.process_name(pid))  # type: ignore[misc]  # of a default argument
            is_own = holder.pid in own
            found.append({"pid": holder.pid, "name": name, "memory_bytes": holder.memory_bytes, "is_own": is_own})
        return found


# Metrics for Prometheus, in OpenMetrics: base units, absent where nothing is known, and counters that never fall. A
# counter counts from the start of this process on (OpenMetrics 1.0, "Counter"): what a training or a GPU had before
# does not count, and one that begins anew adds to what was there.


class Metrics(Collector):
    """Metrics of what the daemon knows.

    Args:
        view: Returns what it knows now; None as long as that is nothing.
        trials: Returns the number of trials of its searches by their ending, since it was started.
    """

    def __init__(self, view: Callable[[], View | None], trials: Callable[[], Mapping[str, int]]) -> None:
        self._view = view
        self._trials = trials
        self._energy_j: dict[str, tuple[float, float]] = {}  # by GPU: the last reading, and what was counted
        self._registry = CollectorRegistry()  # of one: no metrics of the process, none that others have registered
        self._registry.register(self)

    def text(self) -> tuple[bytes, str]:
        """Return the metrics, and their content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]  # it has none

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
            (gauge, "gpu_memory_used_bytes", "Memory in use by all processes.", "gpu_uuid", memory),
            (counter, "gpu_energy_joules", "Energy drawn since the daemon began.", "gpu_uuid", energy),
            (gauge, "training_speed_ratio", "Speed over the one that was confirmed.", "training", speed),
            (counter, "training_samples", "Samples that watched trainings have trained on.", "training", samples),
            (counter, "trials", "Trials of this daemon's searches.", "ending", dict(sorted(self._trials().items()))),
        ):
            family = make(f"autotune_{name}", words, labels=[label])
            for key, value in values.items():
                if value is not None:
                    family.add_metric([key], value)
            yield family

    def _drawn_j(self, uuid: str, reading_j: float | None) -> float | None:
        """Return the energy since the first reading; a driver that is loaded again begins anew."""
        if reading_j is None:
            return None
        last_j, counted_j = self._energy_j.get(uuid, (reading_j, 0.0))
        counted_j += reading_j - last_j if reading_j >= last_j else reading_j
        self._energy_j[uuid] = reading_j, counted_j
        return counted_j


class TrialEndings:
    """Counter of endings, since it began to look.

    What a search had written before the first look does not count: a daemon that was started again counts anew.

    Attributes:
        counts: Number of trials by their ending, as of the last look; never changed afterwards.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._files: dict[Path, LineTail] | None = None

    def look(self, entries: Sequence[QueueEntry]) -> None:
        """Count what was written since the last look.

        Args:
            entries: The queue. A search is followed while its entry says that it runs, and once more after its end.
        """
        running = {path for entry in entries if (path := event_file_of(entry)) is not None}
        before = self._files or {}
        files = before | {path: LineTail(path, longest_bytes=8 << 20) for path in running - before.keys()}
        endings = (_ending(event) for tail in files.values() for event in events_of(tail))
        news = Counter(ending for ending in endings if ending is not None)
        if self._files is not None:
            self.counts = self.counts + news
        self._files = {path: tail for path, tail in files.items() if path in running}


def _ending(event: Event) -> str | None:
    """Return how the trial of an event ended; None if it is none of a trial's end, or names an ending of no version."""
    try:
        return Ending(event["trial"]["ending"]).value if event["event"] == "TrialEnded" else None
    except (LookupError, TypeError, ValueError):
        return None
