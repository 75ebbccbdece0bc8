"""Watch over one training's pace: both questions, and the likely cause of what is found."""

from dataclasses import dataclass

from autotune.daemon.drift.causes import Cause, likely_cause
from autotune.daemon.drift.pace_window import PaceWindow
from autotune.daemon.drift.slowdown import Change, Slowdown, Turn
from autotune.daemon.drift.start_check import SlowStart, StartCheck
from autotune.daemon.drift.surroundings import Surroundings, SurroundingsHistory
from autotune.study.confirmed_speed import ConfirmedSpeed

_SILENT_S = 60.0  # without a window of the chosen process, after which another one takes its place
_SILENT_WINDOWS = 4.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Finding about a training's pace, with its likely cause; None means unknown, or that none is needed."""

    found: SlowStart | Change
    cause: Cause | None


class TrainingWatch:
    """Watch over one training, fed with its windows and the readings of the machine in the order of time.

    Windows of one process at a time are looked at: as long as the one that was chosen reports, those of others, which
    do the same work side by side, are left out. Where another goes on in its place, the training was started anew.

    Args:
        confirmed: What was confirmed for the training's values; None for nothing.
    """

    def __init__(self, confirmed: ConfirmedSpeed | None) -> None:
        self._start = StartCheck(confirmed)
        self._slowdown = Slowdown()
        self._history = SurroundingsHistory()
        self._process: str | None = None
        self._unit: str | None = None
        self._last_s = self._length_s = 0.0

    @property
    def is_slow(self) -> bool:
        """True from an alarm that it has become slower than itself until the recovery."""
        return self._slowdown.is_slow

    def note(self, t_s: float, surroundings: Surroundings) -> None:
        """Add a reading of the machine."""
        self._history.add(t_s, surroundings)

    def add(self, window: PaceWindow) -> list[Finding]:
        """Add a window; return what it shows, nearly always nothing."""
        ln_pace = window.ln_pace
        if ln_pace is None or not self._is_chosen(window):
            return []
        if window.wait_fraction is not None:
            self._history.add_wait(window.t1_s, window.wait_fraction)
        findings = []
        if (slow := self._start.add(window)) is not None:
            # Nothing is known of the time when the trials were made: what is unusual now has to speak for itself.
            findings.append(Finding(found=slow, cause=likely_cause(Surroundings(), self._history.after(slow.since_s))))
        if (change := self._slowdown.add(window.t1_s, window.train_s, ln_pace)) is not None:
            findings.append(Finding(found=change, cause=self._cause(change)))
        return findings

    def _cause(self, change: Change) -> Cause | None:
        if change.turn is Turn.RECOVERED:
            return None
        return likely_cause(self._history.before(change.since_s), self._history.after(change.since_s))

    def _is_chosen(self, window: PaceWindow) -> bool:
        if window.process != self._process:
            if self._process is not None:
                if window.t1_s - self._last_s < max(_SILENT_S, _SILENT_WINDOWS * self._length_s):
                    return False
                self._slowdown.resume()
                self._start.restart()
            self._process = window.process
        if window.unit != self._unit:
            if self._unit is not None:  # such paces cannot be compared
                self._slowdown = Slowdown()
            self._unit = window.unit
        self._last_s, self._length_s = window.t1_s, window.t1_s - window.t0_s
        return True
