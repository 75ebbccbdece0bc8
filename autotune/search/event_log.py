"""Event log of a search: a file of JSON lines for other programs and for later."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

from autotune.clock import Clock
from autotune.events import Event, TrialProgress
from autotune.files import open_regular

FORMAT = 2
"""Format version of the lines; in format 1 the figures of a GPU were not a record of their own."""

_log = logging.getLogger(__name__)


class EventLog:
    """Writer of events as lines of JSON; a full disk does not stop the search, as the log is only a view.

    Args:
        path: The file; created by the first event.
        clock: Clock of the time stamps.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Append an event; progress within a trial is left out, as the trial's own files have it."""
        if isinstance(event, TrialProgress):
            return
        line = {
            "format": FORMAT,
            "event": type(event).__name__,
            "utc": self._clock.utc().isoformat(timespec="milliseconds"),
            **asdict(event),
        }
        try:
            with open_regular(self._path, append=True, create=True) as file:
                file.write((json.dumps(line) + "\n").encode("ascii"))
        except OSError as error:
            _log.warning("the event could not be written to %s: %s", self._path, error.strerror)
