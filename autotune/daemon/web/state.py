"""State of the page: one JSON-ready document of all that it shows.

Text that comes from trainers, configs and the driver has no control characters and a bounded length; absent is null.
The document stays below 200 kB whatever there is. Actions name the ids in it: of an entry for ``pause``, ``resume``
and ``remove``, of an advice for ``apply``, where its `actions` hold that word.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Generic, TypedDict, TypeVar

from autotune.clock import Clock, format_duration
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import Queue
from autotune.daemon.web.queue_section import AdvicesPart, QueuePart, advice_section, line, queue_section
from autotune.daemon.web.search_section import SearchFollower, SearchPart
from autotune.daemon.web.trainings_section import (
    GpuHistories,
    GpusPart,
    ToldAlarms,
    TrainingHistories,
    TrainingsPart,
    gpus_section,
    trainings_section,
)
from autotune.daemon.web.view import DaemonView
from autotune.errors import AutotuneError

FORMAT = 1
"""Format version of the document."""


class HealthPart(TypedDict):
    """Health of the daemon."""

    autotune: str
    pid: int
    started_utc: str
    hosted: str
    host: str
    machine: str
    trouble: str | None


class WebState(TypedDict):
    """State of the page; `utc` is its moment, and all that differs between two documents of which nothing changed."""

    format: int
    utc: str
    headline: Headline
    daemon: HealthPart
    gpus: GpusPart
    search: SearchPart | None
    queue: QueuePart
    trainings: TrainingsPart
    advice: AdvicesPart
    actions: bool
    csrf: str | None


class PageState:
    """Maker of the page's state, from what the daemon's loop says and from the files that it keeps.

    The loop calls `note`, which takes microseconds; `document` reads what is new in the files, and may be called in
    another thread.
    """

    def __init__(self, home: DaemonHome, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # over what the loop and the page share
        self._making = threading.Lock()
        self._view: DaemonView | None = None
        self._gpus = GpuHistories()
        self._speeds = TrainingHistories()
        self._queue = Queue(home.queue, clock)
        self._entries = FilesRead(home.queue, self._queue.entries)
        self._advices = FilesRead(home.advice, Advices(home.advice).all)
        self._alarms = ToldAlarms(home.trainings)
        self._search = SearchFollower(self._queue)

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now, and add it to the last hour."""
        with self._lock:
            self._view = view
            self._gpus.note(view.gpus)
            self._speeds.note(view.trainings, self._clock.now_s())

    def document(self, *, actions: bool = False, csrf: str | None = None) -> WebState | None:
        """Return the state; None before the first `note`.

        Args:
            csrf: Token that an action has to bring.
        """
        with self._making:
            view = self._view
            if view is None:
                return None
            entries, trouble = self._entries.now()
            advices, _ = self._advices.now()
            alarms = self._alarms.newest(view.trainings)
            with self._lock:
                now_s, now = self._clock.now_s(), self._clock.utc()
                gpus = gpus_section(view, self._gpus, now_s, now)
                speeds = trainings_section(view.trainings, self._speeds, alarms, now_s, now)
            return web_state(
                view,
                now=now,
                gpus=gpus,
                search=self._search.section(entries),
                queue=queue_section(entries, view.reasons, trouble=trouble, actions=actions),
                trainings=speeds,
                advices=advice_section(advices, actions=actions),
                actions=actions,
                csrf=csrf,
            )


def web_state(
    view: DaemonView,
    *,
    now: datetime,
    gpus: GpusPart,
    search: SearchPart | None,
    queue: QueuePart,
    trainings: TrainingsPart,
    advices: AdvicesPart,
    actions: bool = False,
    csrf: str | None = None,
) -> WebState:
    """Return the state of the page from its sections.

    Args:
        search: Section of the search; None if none was made.
        actions: Whether the page may change something.
        csrf: Token that an action has to bring; None without actions.
    """
    trouble = line(view.trouble or queue["trouble"])
    return WebState(
        format=FORMAT,
        utc=now.isoformat(timespec="seconds"),
        headline=headline(search=search, queue=queue, trainings=trainings, advices=advices, trouble=trouble),
        daemon=HealthPart(
            autotune=view.autotune,
            pid=view.pid,
            started_utc=view.started_utc,
            hosted=line(view.hosted) or "",
            host=line(socket.gethostname(), 80) or "",
            machine=line(view.machine) or "",
            trouble=trouble,
        ),
        gpus=gpus,
        search=search,
        queue=queue,
        trainings=trainings,
        advice=advices,
        actions=actions,
        csrf=csrf if actions else None,
    )


class Tone(StrEnum):
    """Importance of a headline."""

    ALARM = "alarm"
    TROUBLE = "trouble"
    WORK = "work"
    NEWS = "news"
    QUIET = "quiet"


class Headline(TypedDict):
    """Sentence on what goes on."""

    tone: str
    text: str


def headline(
    *, search: SearchPart | None, queue: QueuePart, trainings: TrainingsPart, advices: AdvicesPart, trouble: str | None
) -> Headline:
    """Return the headline: an alarm before the search that runs, that before what waits, that before what is done."""
    opened = [alarm for alarm in trainings["alarms"] if alarm["is_open"]]
    if opened:
        more = f" (and {len(opened) - 1} more)" if opened[1:] else ""
        return _say(Tone.ALARM, f"{opened[0]['message']}{more}")
    if trouble:
        return _say(Tone.TROUBLE, f"Trouble: {trouble}")
    if search is not None and search["is_running"]:
        return _say(Tone.WORK, _of_search(search))
    waiting = [entry for entry in queue["entries"] if entry["state"] in ("waiting", "held", "paused")]
    going_on = trainings["trainings"]
    if waiting:
        first = waiting[0]
        why = f": entry {first['number']} {first['reason']}" if first["reason"] else ""
        count = "One search stands" if len(waiting) == 1 else f"{len(waiting)} searches stand"
        return _say(Tone.WORK, f"{count} in the queue{why}.")
    if going_on:
        count = "One training goes on" if len(going_on) == 1 else f"{len(going_on)} trainings go on"
        return _say(Tone.QUIET, f"{count}; no alarm. The queue is empty.")
    fresh = [one for one in advices["advice"] if one["state"] == "given"]
    if fresh:
        ratio, low, high = fresh[0]["ratio"]
        name = short_path(fresh[0]["config"])
        return _say(Tone.NEWS, f"Advice for {name}: {ratio:.2f}x as fast ({low:.2f} to {high:.2f}), not applied yet.")
    return _say(Tone.QUIET, "Nothing runs, and nothing waits.")


def short_path(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(PurePath(path).parts[-2:])


def _of_search(search: SearchPart) -> str:
    name, budget = short_path(search["config"]), format_duration(search["budget_s"])
    phase = {"exploring": "Searching", "confirming": "Confirming"}.get(search["phase"] or "", "Searching")
    trials = "1 trial" if search["trials"] == 1 else f"{search['trials']:,} trials"
    begun = f"{phase} {name}, budget {budget}: "
    if search["best_changes"] is None or not search["best"]:
        return f"{begun}{trials} made, nothing better than today's config yet."
    return f"{begun}{search['best'][-1][1]:.2f}x today's speed after {trials}, with {search['best_changes']}."


def _say(tone: Tone, text: str) -> Headline:
    return Headline(tone=tone.value, text=text)


Thing = TypeVar("Thing")
_Stamp = tuple[tuple[str, int, int], ...]


class FilesRead(Generic[Thing]):
    """Things of one folder.

    Args:
        read: Reads all of them; may raise `AutotuneError`.
    """

    def __init__(self, folder: Path, read: Callable[[], Sequence[Thing]]) -> None:
        self._folder = folder
        self._read = read
        self._stamp: _Stamp | None = None
        self._things: Sequence[Thing] = ()
        self._trouble: str | None = None

    def now(self) -> tuple[Sequence[Thing], str | None]:
        """Return the things, and why they cannot be read, in words: the last ones that could be are given then."""
        stamp = self._look()
        if stamp is None or stamp != self._stamp:
            self._stamp = stamp
            try:
                self._things, self._trouble = self._read(), None
            except AutotuneError as error:
                self._trouble = str(error)
        return self._things, self._trouble

    def _look(self) -> _Stamp | None:
        """Return names, sizes and times of the files; None if they cannot be looked at."""
        try:
            with os.scandir(self._folder) as found:
                files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found if _is_ours(entry.name)]
        except OSError:
            return None
        return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in files))


def _is_ours(name: str) -> bool:
    return name.endswith(".json")
