"""Event files of the searches of one study, read as they grow."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.daemon.queue.entry import Entry
from autotune.errors import AutotuneError
from autotune.files import open_regular, read_beginning
from autotune.folders.state_folder import StateFolder

SUFFIX = ".events.jsonl"
_MOST_FILES = 200
_BEGINNING_BYTES = 64 << 10  # the study's name stands there, behind a few remarks
_CHUNK_BYTES = 4 << 20
_MOST_AT_ONCE_BYTES = 32 << 20  # of one call; the rest comes with the next ones
_LONGEST_LINE_BYTES = 8 << 20

Event = Mapping[str, Any]


class EventFile:
    """Event file of one search, which may be written to meanwhile.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._rest = b""
        self._is_skipping = False  # the rest of a line that is too long

    def news(self, most_bytes: int) -> Iterator[Event]:
        """Yield the events that were written since the last call; what is no event is passed over.

        Args:
            most_bytes: Where to stop; the next call goes on from there.
        """
        end = self._position + most_bytes
        try:
            with open_regular(self.path) as file:
                file.seek(self._position)
                while self._position < end and (chunk := file.read(min(_CHUNK_BYTES, end - self._position))):
                    self._position += len(chunk)
                    yield from self._events(chunk)
        except OSError:  # it was taken away
            return

    @property
    def read_bytes(self) -> int:
        """Bytes that were read so far."""
        return self._position

    def _events(self, chunk: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._is_skipping and lines:
            self._is_skipping = False
            del lines[0]
        if len(self._rest) > _LONGEST_LINE_BYTES or self._is_skipping:
            self._rest, self._is_skipping = b"", True
        for line in lines:
            if (event := _event(line)) is not None:
                yield event


class StudyEvents:
    """Events of all searches of the study that one search works on, as far as their files lie beside its own.

    Args:
        path: Event file of the search.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[EventFile] | None = None

    def news(self) -> Iterator[tuple[str, Event]]:
        """Yield each event that is new since the last call with the name of its search, the oldest search first."""
        if self._files is None:
            study = _study_of(self.path)
            if study is None:
                return
            self._files = [EventFile(path) for path in _siblings(self.path, study)]
        left = _MOST_AT_ONCE_BYTES
        for file in self._files:
            before = file.read_bytes
            for event in file.news(left):
                yield file.path.name.removesuffix(SUFFIX), event
            left -= file.read_bytes - before
            if left <= 0:  # in their order, or the time of one search would be taken for that of another
                return


def event_file_of(entry: Entry) -> Path | None:
    """Return the event file of the search of an entry that runs; None if none runs, or has written anything yet."""
    if entry.owner is None:
        return None
    ending = f"-{entry.owner.get('host')}-{entry.owner.get('pid')}{SUFFIX}"
    try:
        folder = StateFolder.locate(Path(entry.config), explicit=_state_folder(entry), environ=entry.environment)
        found = [one for one in folder.searches.iterdir() if one.name.endswith(ending)]
    except (AutotuneError, OSError):
        return None
    return max(found, key=lambda path: path.name, default=None)


def _state_folder(entry: Entry) -> Path | None:
    """Return the folder that ``--state-dir`` of an entry names."""
    options = entry.options[: entry.options.index("--")] if "--" in entry.options else entry.options
    for place, option in enumerate(options):
        if option == "--state-dir" and place + 1 < len(options):
            return Path(entry.cwd) / options[place + 1]
        if option.startswith("--state-dir="):
            return Path(entry.cwd) / option.partition("=")[2]
    return None


def _siblings(path: Path, study: str) -> list[Path]:
    """Return the event files of a study in a folder up to one of them; their names begin with the time in UTC."""
    try:
        found = sorted(one for one in path.parent.iterdir() if one.name.endswith(SUFFIX) and one.name < path.name)
    except OSError:
        found = []
    return [*(one for one in found[-_MOST_FILES:] if _study_of(one) == study), path]


def _study_of(path: Path) -> str | None:
    """Return the study of a search, by the beginning of its event file; None if it is not known yet."""
    for line in read_beginning(path, _BEGINNING_BYTES).split(b"\n"):
        event = _event(line)
        if event is not None and event.get("event") == "SearchStarted":
            study = event.get("study")
            return study if isinstance(study, str) else None
    return None


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # a torn last line
        return None
    return event if isinstance(event, dict) else None
