"""Endings of the trials of the daemon's searches, counted since it began, by the answers that the searches left."""

import json
import threading
from collections import Counter

from autotune.clock import Clock
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue.queue import Queue
from autotune.errors import AutotuneError
from autotune.files import read_beginning

_MOST_BYTES = 16 << 20


class TrialEndings:
    """Counter of endings; what was there when it began does not count.

    Args:
        home: Folders of the daemon.
        clock: The machine's clock.
    """

    def __init__(self, home: DaemonHome, clock: Clock) -> None:
        self._queue = Queue(home.queue, clock)
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()
        self._seen: dict[str, int] = {}  # of an entry the size of its answer: one that is made again has another
        self._count()
        self._counted.clear()

    def counts(self) -> dict[str, int]:
        """Return the number of trials by their ending."""
        with self._lock:
            self._count()
            return dict(self._counted)

    def _count(self) -> None:
        try:
            entries = self._queue.entries()
        except AutotuneError:  # the page says it; counters stay
            return
        for entry in entries:
            text = read_beginning(self._queue.answer(entry), _MOST_BYTES)
            if not text or self._seen.get(entry.id) == len(text):
                continue
            try:
                outcomes = json.loads(text)["outcomes"]
                counted = Counter({str(ending): int(count) for ending, count in outcomes.items()})
            except (ValueError, LookupError, TypeError, AttributeError):  # half written, or an error
                continue
            self._seen[entry.id] = len(text)
            self._counted.update(counted)
