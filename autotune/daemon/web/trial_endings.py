"""Endings of the trials of the daemon's searches, counted as their event files grow."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.daemon.queue.entry import Entry
from autotune.daemon.web.sections.event_files import EventFile, event_file_of
from autotune.records import Ending

_MOST_AT_ONCE_BYTES = 8 << 20


class TrialEndings:
    """Counter of endings, since it began to look.

    What a search had written before the first look does not count: a daemon that was started again counts anew.
    """

    def __init__(self) -> None:
        self._files: dict[Path, EventFile] = {}
        self._counted: Counter[str] = Counter()
        self._is_first = True

    @property
    def counts(self) -> Counter[str]:
        """Number of trials by their ending, as of the last look; never changed afterwards."""
        return self._counted

    def look(self, entries: Sequence[Entry]) -> None:
        """Count what was written since the last look.

        Args:
            entries: The queue. A search is followed while its entry says that it runs, and once more after its end.
        """
        running = {path for entry in entries if (path := event_file_of(entry)) is not None}
        for path in running - self._files.keys():
            self._files[path] = EventFile(path)
        news = Counter(
            ending
            for file in self._files.values()
            for event in file.news(_MOST_AT_ONCE_BYTES)
            if (ending := _ending(event)) is not None
        )
        if not self._is_first:
            self._counted = self._counted + news
        self._is_first = False
        self._files = {path: file for path, file in self._files.items() if path in running}


def _ending(event: Any) -> str | None:
    """Return how the trial of an event ended; None if it is none of a trial's end, or names an ending of no version."""
    try:
        return Ending(event["trial"]["ending"]).value if event["event"] == "TrialEnded" else None
    except (LookupError, TypeError, ValueError):
        return None
