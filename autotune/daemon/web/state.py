"""State of the page: one JSON-ready document of all that it shows.

Text that comes from trainers, configs and the driver has no control characters and a bounded length; absent is null.
The document stays below 200 kB whatever there is. Actions name the ids in it: of an entry for ``pause``, ``resume``
and ``remove``, of an advice for ``apply``, where its `actions` hold that word.
"""

import socket
import threading
from datetime import datetime
from typing import TypedDict

from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue.queue import Queue
from autotune.daemon.web.daemon_view import DaemonView
from autotune.daemon.web.files_read import FilesRead
from autotune.daemon.web.page_text import line
from autotune.daemon.web.sections.advice_section import AdvicesPart, advice_section
from autotune.daemon.web.sections.gpus_section import GpuHistories, GpusPart, gpus_section
from autotune.daemon.web.sections.headline import Headline, headline
from autotune.daemon.web.sections.queue_section import QueuePart, queue_section
from autotune.daemon.web.sections.search_section import SearchFollower, SearchPart
from autotune.daemon.web.sections.trainings_section import (
    ToldAlarms,
    TrainingHistories,
    TrainingsPart,
    trainings_section,
)

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

    Args:
        home: The daemon's folders.
        clock: The machine's clock.
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
            actions: Whether the page may change something.
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
        view: What the daemon knows.
        now: The time.
        gpus: Section of the GPUs.
        search: Section of the search; None if none was made.
        queue: Section of the queue.
        trainings: Section of the trainings.
        advices: Section of the advice.
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
