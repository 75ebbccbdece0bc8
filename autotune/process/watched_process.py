"""Observation from outside of a process that somebody else started: liveness, descendants, step files."""

import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.folders.trial_folder import TrialFolder

_LOOK_S = 5.0  # between two looks at all processes of the machine
_COST_SHARE = (
    0.001  # of one core: where a look is expensive, on a machine with thousands of processes, it is made less often
)
_REMEMBERED_S = 120.0
_STEPS = re.compile(r"steps\.[0-9]+\.[0-9]+\.jsonl")


class WatchedProcess:
    """Process and its descendants, read only: no signal is ever sent to them.

    Args:
        pid: Its id.
        clock: Limits the rate of looks.

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
        """True if it is gone, or a zombie that its parent has not reaped."""
        try:
            # is_running compares the start time: another process may have been given the number since.
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def pids(self) -> frozenset[int]:
        """Return its id and those of all its descendants, including processes that ended in the last minute or two."""
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
        """Return the environment that it was started with; None if that may not be read."""
        try:
            return self._process.environ()
        except (psutil.Error, OSError):
            return None

    def trial_folder(self) -> Path | None:
        """Return the folder of its step files; None if it is no trial of autotune, or does not report any steps yet.

        ``AUTOTUNE_TRIAL_DIR`` names it. A trial that was forked from a zygote has that in its memory only, where
        it is not visible; but it holds its step file open.
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
