"""Liveness of a trial that was forked from a zygote, until its first step proves it."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from autotune.clock import Clock
from autotune.folders.trial_folder import TrialFolder
from autotune.process.launch import Watch
from autotune.records import Stop, TraineeEvent

_LOOK_S = 0.5  # between looks at all processes of the trial
_AT_ONCE = frozenset({"launched", "start", "reporter", "unseen"})  # true also if another process makes the trial


class Liveness:
    """Wrapper around a trial's watch that checks for signs of life until the first step.

    A process that was forked while a library held a lock may wait for that lock for ever: it prints nothing and uses no
    CPU time at all, while compiling and tracing, however slow, use it all the time. Notes and pauses before the first
    step are held back, so that the watch does not see a trial that is restarted.

    Args:
        watch: The trial's watch.
        folder: The trial's folder.
        clock: Source of time.
        limit_s: Longest time without a sign of life.

    Attributes:
        first_step_s: Time at which the first step ended; None before it.
        is_lost: Whether the trial was stopped because it gave no sign of life.
        longest_silence_s: Longest time without a sign of life before its first step.
    """

    def __init__(self, watch: Watch, folder: TrialFolder, clock: Clock, *, limit_s: float) -> None:
        self._watch = watch
        self._folder = folder
        self._clock = clock
        self._limit_s = limit_s
        self._held: list[TraineeEvent] = []
        self._signs: tuple[float, int] | None = None
        self._alive_s = self._looked_s = clock.now_s()
        self._pid: int | None = None
        self.first_step_s: float | None = None
        self.is_lost = False
        self.longest_silence_s = 0.0

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        """See `Runner.run`; a trial without a sign of life is stopped as one that never started."""
        if self.first_step_s is not None:
            return self._watch(events)
        at_once = [event for event in events if event.kind in _AT_ONCE]
        self._held += [event for event in events if event.kind not in _AT_ONCE]
        self.first_step_s = next((event.t_s for event in events if event.kind == "step"), None)
        if self.first_step_s is not None:
            return self._watch(at_once) or self.let_go()
        stop = self._watch(at_once)
        if stop is None and self._is_silent():
            self.is_lost = True
            return Stop.NEVER_STARTED
        return stop

    def began(self, pid: int) -> None:
        """Set the trial's main process."""
        self._pid = pid

    def let_go(self) -> Stop | None:
        """Pass on the events that were held back."""
        held, self._held = self._held, []
        return self._watch(held) if held else None

    def _is_silent(self) -> bool:
        now_s = self._clock.now_s()
        if now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        signs = (_cpu_s(self._pid), _size(self._folder.stdout) + _size(self._folder.stderr))
        if signs != self._signs:
            self._signs = signs
            self._alive_s = now_s
        self.longest_silence_s = max(self.longest_silence_s, now_s - self._alive_s)
        return now_s - self._alive_s >= self._limit_s


def _cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process and its descendants; any change counts, even that one of them has ended."""
    if pid is None:
        return 0.0
    total_s = 0.0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            times = member.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    except psutil.Error:  # it ended while we looked; the guard reports its end
        return -1.0
    return total_s


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
