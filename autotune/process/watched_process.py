"""A process that somebody else started, watched from outside: whether it lives, what belongs to it, what it reports."""

import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.folders.trial_folder import TrialFolder

_LOOK_S = 5.0  # between two looks at all processes of the machine
_COST_SHARE = (
    0.001  # of one core: where a look is dear, on a machine with thousands of processes, it is made less often
)
_REMEMBERED_S = 120.0
_STEPS = re.compile(r"steps\.[0-9]+\.[0-9]+\.jsonl")


class WatchedProcess:
    """A process and all below it; nothing is ever sent to it, and nothing of it is written.

    Args:
        pid: Its id.
        clock: Paces the looks.

    Raises:
        AutotuneError: There is no such process, or it has ended.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        self.pid = pid
        self._clock = clock
        self._seen_s: dict[int, float] = {pid: clock.now_s()}
        self._look_s = clock.now_s()
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise AutotuneError(
                f"there is no process {pid}",
                remedy="`ps -ef` lists those there are; in a container they have other numbers than outside.",
            ) from None
        if self.has_ended:
            raise AutotuneError(f"process {pid} has ended", remedy="Name a process that is still running.")

    @property
    def has_ended(self) -> bool:
        """Whether it is gone; one whose parent has not asked how it ended is gone too."""
        try:
            # is_running compares the start time: another process may have been given the number since.
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def pids(self) -> frozenset[int]:
        """It and all below it, also what has ended in the last minute or two."""
        began_s = self._clock.now_s()
        if began_s >= self._look_s:
            try:
                below = self._process.children(recursive=True)
            except psutil.Error:
                below = []
            now_s = self._clock.now_s()
            self._seen_s |= dict.fromkeys((self.pid, *(child.pid for child in below)), now_s)
            self._seen_s = {pid: seen_s for pid, seen_s in self._seen_s.items() if now_s - seen_s <= _REMEMBERED_S}
            self._look_s = now_s + max(_LOOK_S, (now_s - began_s) / _COST_SHARE)
        return frozenset(self._seen_s)

    def environ(self) -> Mapping[str, str] | None:
        """The environment that it was started with; None where that may not be read."""
        try:
            return self._process.environ()
        except (psutil.Error, OSError):
            return None

    def trial_folder(self) -> Path | None:
        """The folder in which it reports its steps; None if it is no trial of autotune, or does not report any yet.

        ``AUTOTUNE_TRIAL_DIR`` names it. A trial that was forked from a warm interpreter has that in its memory only,
        where nobody sees it; but it holds the file of its steps open.
        """
        named = (self.environ() or {}).get("AUTOTUNE_TRIAL_DIR")
        if named:
            return Path(named)
        try:
            files = [Path(file.path) for file in self._process.open_files()]
        except (psutil.Error, OSError):
            return None
        folders = (file.parent for file in files if _STEPS.fullmatch(file.name))
        return next((folder for folder in folders if TrialFolder(folder).is_ours()), None)
