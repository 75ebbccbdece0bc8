"""Watch of the logs of trials while a search goes on: when each trainer said how far it was, by its own log."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real_trainers.own_log import OwnLog, Progress

LOOK_S = 0.02
_NEW_S = 0.5
_NAMES = ("stdout.log", "stderr.log")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Progress of a trial at one time.

    Attributes:
        t_s: Time of the monotonic clock, which the records of the steps use too.
        done: Samples or steps, see `Progress`.
    """

    t_s: float
    done: float


class GrowingLog:
    """Log of a trainer, which grows, and its points in time at which it showed progress."""

    def __init__(self, path: Path, form: OwnLog) -> None:
        self.path = path
        self.progress = Progress(log=form)
        self.points: list[Point] = []
        self._read_bytes = 0

    def look(self) -> None:
        """Read what has been written since."""
        try:
            size_bytes = self.path.stat().st_size
            if size_bytes == self._read_bytes:
                return
            now_s = time.monotonic()
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except OSError:
            return  # it has been cleared away
        self._read_bytes += len(new)
        if self.progress.feed(new.decode(errors="replace")):
            self.points.append(Point(t_s=now_s, done=self.progress.done))


class Watch:
    """Watch of the logs of all trials below a project.

    Args:
        project: The project, in which a state folder appears.
        form: Form of the trainer's progress lines.
    """

    def __init__(self, project: Path, form: OwnLog) -> None:
        self._project = project
        self._form = form
        self._logs: dict[Path, GrowingLog] = {}

    @contextmanager
    def watching(self) -> Iterator["Watch"]:
        """Watch in a thread of its own as long as the block lasts."""
        end = threading.Event()
        thread = threading.Thread(target=self._follow, args=(end,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            end.set()
            thread.join()

    def points(self, trial: Path) -> Sequence[Point]:
        """Return the progress of one trial, of the log that has its progress lines."""
        logs = [self._logs[trial / name].points for name in _NAMES if trial / name in self._logs]
        return max(logs, key=len, default=[])

    def _follow(self, end: threading.Event) -> None:
        looked_s = -_NEW_S
        while not end.wait(LOOK_S):
            if time.monotonic() - looked_s >= _NEW_S:
                self._find()
                looked_s = time.monotonic()
            for log in list(self._logs.values()):
                log.look()

    def _find(self) -> None:
        for state in (self._project, *self._project.glob("*/")):
            for name in _NAMES:
                for path in state.glob(f".autotune/trials/*/*/{name}"):
                    if path not in self._logs:
                        self._logs[path] = GrowingLog(path, self._form)
