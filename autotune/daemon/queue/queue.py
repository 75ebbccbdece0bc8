"""The queue: entries in one file, changed by whoever holds its lock, the daemon and the commands alike."""

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.clock import Clock
from autotune.daemon.queue.entry import FORMAT, Entry
from autotune.errors import AutotuneError
from autotune.files import make_private_folder, open_regular, replace_durably

KEPT_ENTRIES = 50
"""Number of entries that are done and still listed."""

_LOCK_S = 10.0  # a change takes milliseconds; a disk that hangs is said
_LOOK_S = 0.02
_MOST_BYTES = 16 << 20  # of the file


class Queue:
    """Queue of searches in a folder; it needs no daemon to be read and added to.

    Args:
        folder: The folder; made if it is not there.
        clock: Limits the wait for the lock.

    Raises:
        AutotuneError: The folder cannot be made.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._file = folder / "queue.json"
        try:
            make_private_folder(folder)
        except OSError as error:
            raise AutotuneError(
                f"the folder of the queue cannot be made: {error.strerror}",
                where=str(folder),
                remedy="See to that (room, permissions), or name another place with AUTOTUNE_DAEMON_DIR.",
            ) from error

    def entries(self) -> list[Entry]:
        """Return all entries, in the order in which they were added.

        Raises:
            AutotuneError: The file cannot be read.
        """
        return self._read()[0]

    def entry(self, number: int) -> Entry:
        """Return the entry that people call by this number.

        Raises:
            AutotuneError: There is none.
        """
        return _find(self.entries(), number)

    def log(self, entry: Entry) -> Path:
        """Return the file that holds what the searches of an entry print about their progress."""
        return self.folder / f"{entry.id}.log"

    def answer(self, entry: Entry) -> Path:
        """Return the file that holds the answer of an entry's latest search, as JSON."""
        return self.folder / f"{entry.id}.json"

    def add(self, make: Callable[[int, Sequence[Entry]], Entry]) -> Entry:
        """Add an entry.

        Args:
            make: Makes it from its number and the entries that are there; may refuse by raising. An entry whose id is
                there already is not added again.

        Returns:
            The entry, or the one of the same id that was there.

        Raises:
            AutotuneError: The queue cannot be read or written.
        """
        with self._locked():
            entries, number = self._read()
            new = make(number, entries)
            for entry in entries:
                if entry.id == new.id:
                    return entry
            self._write([*entries, new], number + 1)
            return new

    def change(self, id: str, change: Callable[[Entry], Entry]) -> Entry | None:
        """Change an entry as it is at this moment.

        Args:
            id: Its id.
            change: Returns the entry as it is to be; called while nobody else can change it. It may refuse by raising.

        Returns:
            The changed entry; None if there is none of this id any more.

        Raises:
            AutotuneError: The queue cannot be read or written.
        """
        with self._locked():
            entries, number = self._read()
            changed = [change(entry) if entry.id == id else entry for entry in entries]
            if changed != entries:
                self._write(changed, number)
            return next((entry for entry in changed if entry.id == id), None)

    def remove(self, id: str) -> None:
        """Remove an entry, its log and its answer; nothing happens if it is gone.

        Raises:
            AutotuneError: The queue cannot be read or written.
        """
        with self._locked():
            entries, number = self._read()
            self._write([entry for entry in entries if entry.id != id], number)
            for gone in [entry for entry in entries if entry.id == id]:
                self._forget(gone)

    def _forget(self, entry: Entry) -> None:
        for path in (self.log(entry), self.answer(entry)):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            opened = open_regular(self.folder / "queue.lock", append=True, create=True)
        except OSError as error:
            raise self._trouble(f"its lock cannot be opened: {error.strerror}") from error
        with opened as file:
            until_s = self._clock.now_s() + _LOCK_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._clock.now_s() >= until_s:
                        raise self._trouble(f"somebody else has held its lock for {_LOCK_S:.0f} s") from None
                    self._clock.wait(_LOOK_S)
            yield

    def _read(self) -> tuple[list[Entry], int]:
        """Return the entries, and the number of the next one."""
        try:
            with open_regular(self._file) as file:
                text = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return [], 1
        except OSError as error:
            raise self._trouble(f"it cannot be read: {error.strerror}") from error
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"it has format {document['format']!r}, and this version knows {FORMAT}")
            return [Entry.of_document(one) for one in document["entries"]], int(document["next"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._trouble(f"it cannot be understood: {error}") from error

    def _write(self, entries: Sequence[Entry], number: int) -> None:
        closed = [entry for entry in entries if not entry.state.is_open]
        dropped = {entry.id for entry in closed[: max(0, len(closed) - KEPT_ENTRIES)]}
        kept = [entry for entry in entries if entry.id not in dropped]
        document = {"format": FORMAT, "next": number, "entries": [entry.document() for entry in kept]}
        content = json.dumps(document, indent=1).encode("ascii")
        if len(content) > _MOST_BYTES:
            raise self._trouble(f"it would become larger than the {_MOST_BYTES >> 20} MiB that are read of it")
        try:
            replace_durably(self._file, content)
        except OSError as error:
            raise self._trouble(f"it cannot be written: {error.strerror}") from error
        for entry in entries:
            if entry.id in dropped:
                self._forget(entry)

    def _trouble(self, why: str) -> AutotuneError:
        return AutotuneError(
            f"the queue cannot be used: {why}",
            where=str(self._file),
            remedy="Nothing of it was changed. See to that file and its disk; moved away, it makes room for a new one.",
        )


def find_entries(entries: Sequence[Entry], numbers: Sequence[int]) -> list[Entry]:
    """Return the entries of these numbers.

    Raises:
        AutotuneError: There is none of one of them.
    """
    return [_find(entries, number) for number in numbers]


def _find(entries: Sequence[Entry], number: int) -> Entry:
    for entry in entries:
        if entry.number == number:
            return entry
    raise AutotuneError(f"there is no entry {number} in the queue", remedy="`autotune queue list` shows them.")
