"""Check of a training's first minutes: is it as fast as what was confirmed for its values on this hardware class?"""

from dataclasses import dataclass
from statistics import median

from autotune.daemon.drift.pace_window import PaceWindow
from autotune.study.confirmed_speed import ConfirmedSpeed

WARM_UP_S = 30.0
"""Training time that is not looked at."""

LOOK_S = 150.0
"""Training time of one look. There are two, and only a training that is slower in both is said to be."""

_FEWEST_WINDOWS = 5


@dataclass(frozen=True, kw_only=True)
class SlowStart:
    """Finding that a training is slower than what was confirmed.

    Attributes:
        t_s: End of the window in which it was found.
        since_s: Start of the looks.
        speed_ratio: Its speed over the confirmed one.
        samples_per_s: Its speed.
        confirmed: What was confirmed, with the interval that this is outside of.
    """

    t_s: float
    since_s: float
    speed_ratio: float
    samples_per_s: float
    confirmed: ConfirmedSpeed


class StartCheck:
    """Check of one training, fed with its windows in the order of time.

    Two looks of 150 s each, at the medians of their windows. Where the first is inside the interval, all is well;
    where both are below it, there is a finding. So at most 2.5 % of the trainings are wrongly said to be slow, as far
    as the trials of the study tell how much one differs from the next.

    Args:
        confirmed: What was confirmed; None for nothing, and nothing is found then.
    """

    def __init__(self, confirmed: ConfirmedSpeed | None) -> None:
        self._confirmed = confirmed
        self._is_due = confirmed is None or not confirmed.after_first_pass
        self._looks = 0
        self.restart()

    def restart(self) -> None:
        """Begin again, because the process was started anew."""
        self._trained_s = 0.0
        self._since_s: float | None = None
        self._speeds: list[float] = []

    @property
    def is_done(self) -> bool:
        """True if there is nothing more to find."""
        return self._confirmed is None

    def add(self, window: PaceWindow) -> SlowStart | None:
        """Add the next window; return the finding that it completes, nearly always None."""
        confirmed = self._confirmed
        if confirmed is None:
            return None
        if not self._is_due:
            self._is_due = window.epochs > 0
            return None
        self._trained_s += window.train_s
        speed = window.samples_per_s(confirmed.samples_per_step)
        if self._trained_s < WARM_UP_S or speed is None:
            return None
        self._since_s = window.t0_s if self._since_s is None else self._since_s
        self._speeds.append(speed)
        if self._trained_s < WARM_UP_S + LOOK_S or len(self._speeds) < _FEWEST_WINDOWS:
            return None
        return self._look(window.t1_s, confirmed)

    def _look(self, t_s: float, confirmed: ConfirmedSpeed) -> SlowStart | None:
        since_s = t_s if self._since_s is None else self._since_s
        speed = median(self._speeds)
        ratio = speed / confirmed.samples_per_s
        self._looks += 1
        self._speeds.clear()
        self._trained_s = WARM_UP_S
        if ratio >= confirmed.low:
            self._confirmed = None
            return None
        if self._looks < 2:
            return None
        self._confirmed = None
        return SlowStart(t_s=t_s, since_s=since_s, speed_ratio=ratio, samples_per_s=speed, confirmed=confirmed)
