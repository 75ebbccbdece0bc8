"""Sequential test whether a training has become slower than itself: a robust CUSUM on the ln pace of its windows.

The test sums up by how much windows are slower than the training's own level, less a slack, and never goes below zero
(Page, "Continuous inspection schemes", Biometrika 41, 1954). What one window says is bounded (Lucas & Crosier, "Robust
CUSUM", Communications in Statistics 11, 1982): a pause that nobody marked, a machine that was suspended. It is bounded
further where a window is 10 to 25 % slower, as slow phases of minutes are on machines that nobody disturbs.

Windows are far from independent, so level and threshold are worked out from the training's long-run variance, by the
method of batch means. The slack covers the error of the level; the threshold is ``c · variance / (2 · slack)``, as the
sum of a process that drifts down by the slack exceeds ``h`` with a probability proportional to ``exp(-2 · slack · h /
variance)`` (Siegmund, "Sequential Analysis", 1985, chapter X). The constants are chosen by simulation: ``python -m
scripts.bench drift`` shows at most one false alarm in 30 days of training.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import exp, sqrt
from statistics import fmean, median

WARM_UP_S = 60.0
"""Training time after a start that is not looked at."""

LEAST_WINDOWS = 30
"""Windows (five minutes) that the level is learned from before anything is tested."""

_LEVEL_WINDOWS = 2160  # six hours: from then on the level stays, so that a slow creep is seen
_PER_MINUTE = 6
_PER_BATCH = 10  # minutes
_LONGEST_S = 20.0  # weight of one window at most
_LINEAR = 0.10  # ln pace up to which a window counts as much as it is slower
_LINEAR_SDS = 2.0
_LINEAR_SLACKS = 1.5
_FLAT = 0.25  # and from which it counts more again
_MOST = 1.0  # what it counts at most
_SLACK = 0.018
_SLACK_ERRORS = 5.0
_LEAST_THRESHOLD = 1.35  # in minutes times ln pace
_THRESHOLD_LN = 24.0
_PRIOR_VARIANCE = 0.006  # long-run variance of a minute
_PRIOR_BATCHES = 3.0
_MINUTES_FACTOR = 2.5
_LEAST_SIZE_SLACKS = 0.5
_LEARNING = 0.05  # of the threshold, up to which the level goes on learning
_BACK_WINDOWS = 18  # three minutes
_BACK_SHARE = 0.35  # of the slowdown, that may be left after a recovery
_BACKOFF = 1.5  # each further alarm of one training needs so much more
_MOST_BACKOFF = 4.0
_KEPT_WINDOWS = 4096


class Turn(StrEnum):
    """Kind of change."""

    SLOWER = "slower"
    RECOVERED = "recovered"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Change of a training's own pace.

    Attributes:
        turn: Slower, or back.
        t_s: End of the window in which it was found.
        since_s: Estimated time of the change.
        speed_ratio: Speed since then over the training's own before it.
    """

    turn: Turn
    t_s: float
    since_s: float
    speed_ratio: float


class _Variance:
    """Running mean and variance (Welford, "Note on a method for calculating corrected sums of squares", 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def variance(self) -> float:
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


class Slowdown:
    """Test of one training, fed with its windows in the order of time.

    Attributes:
        is_slow: True from an alarm until the recovery.
        level: Usual ln pace of this training; None while it is being learned.
        slack: Slowdown (ln pace) that is too small to be seen.
        threshold: Sum at which there is an alarm, in minutes times ln pace.
    """

    def __init__(self) -> None:
        self.is_slow = False
        self.level: float | None = None
        self.slack = self.threshold = 0.0
        self._learned = 0
        self._first: list[float] = []
        self._minutes, self._batches = _Variance(), _Variance()
        self._backoff = 1.0
        self._size = 0.0
        self._linear = _LINEAR
        self._last_s = 0.0
        self.resume()

    def resume(self) -> None:
        """Note that the process was started anew: its warm-up is not looked at, and what was learned stays."""
        self._warm_up_s = WARM_UP_S
        self._minute: list[float] = []
        self._batch: list[float] = []
        self._held: list[float] = []
        self._since_slower: list[float] = []
        self._since_faster: list[float] = []
        self._recent: deque[float] = deque(maxlen=_BACK_WINDOWS)
        self._slower = self._faster = 0.0
        self._slower_since_s = self._last_s  # what has changed since then may be the cause of what is seen later

    def add(self, t_s: float, train_s: float, ln_pace: float) -> Change | None:
        """Add the next window.

        Args:
            t_s: Its end.
            train_s: Training time in it.
            ln_pace: Logarithm of its seconds per unit of work.

        Returns:
            The change that it shows; nearly always None.
        """
        self._last_s = t_s
        if self._warm_up_s > 0.0:
            self._warm_up_s -= train_s
            return None
        if self.level is None:
            self._slower_since_s = t_s
            self._begin(ln_pace)
            return None
        if self.is_slow:
            return self._look_for_recovery(t_s, ln_pace, self.level)
        excess, weight = ln_pace - self.level, min(train_s, _LONGEST_S) / 60.0
        self._sum_up_faster(t_s, excess, weight, self.level)
        change = self._sum_up_slower(t_s, excess, weight, self.level)
        if len(self._held) < _KEPT_WINDOWS:
            self._held.append(ln_pace)
        if (
            not self.is_slow
            and self._slower <= _LEARNING * self.threshold
            and self._faster <= _LEARNING * self.threshold
        ):
            for value in self._held:  # they have turned out to be no change
                self._learn(value)
            self._held.clear()
        return change

    def _sum_up_faster(self, t_s: float, excess: float, weight: float, level: float) -> None:
        """Settle at a faster level once the training is: its first epoch may have filled a cache."""
        self._faster += (min(-excess, self._linear) - self.slack) * weight
        if self._faster <= 0.0:
            self._faster = 0.0
            self._since_faster.clear()
            return
        if len(self._since_faster) < _KEPT_WINDOWS:
            self._since_faster.append(level + excess)
        if self._faster >= self.threshold:
            self._learned = len(self._since_faster)
            self._minutes, self._batches = _Variance(), _Variance()  # they hold the change
            self._minute.clear()
            self._batch.clear()
            self._settle_at(median(self._since_faster), t_s)

    def _sum_up_slower(self, t_s: float, excess: float, weight: float, level: float) -> Change | None:
        self._slower += (self._bounded(excess) - self.slack) * weight
        if self._slower <= 0.0:
            self._slower, self._slower_since_s = 0.0, t_s
            self._since_slower.clear()
            return None
        if len(self._since_slower) < _KEPT_WINDOWS:
            self._since_slower.append(level + excess)
        if self._slower < self.threshold:
            return None
        self._size = median(self._since_slower) - level
        if self._size < _LEAST_SIZE_SLACKS * self.slack:  # a few very slow windows made the sum, not a slowdown
            self._slower, self._slower_since_s = 0.0, t_s
            self._since_slower.clear()
            return None
        self.is_slow = True
        self._recent.clear()
        self._held.clear()
        self._backoff = min(self._backoff * _BACKOFF, _MOST_BACKOFF)
        return Change(turn=Turn.SLOWER, t_s=t_s, since_s=self._slower_since_s, speed_ratio=exp(-self._size))

    def _bounded(self, excess: float) -> float:
        """Return what a window counts that is slower by that much."""
        if excess <= self._linear:
            return max(excess, -_MOST)
        return min(self._linear + max(0.0, excess - max(_FLAT, self._linear)), _MOST)

    def _look_for_recovery(self, t_s: float, ln_pace: float, level: float) -> Change | None:
        self._recent.append(ln_pace)
        if len(self._recent) < _BACK_WINDOWS:
            return None
        left = median(self._recent) - level
        if left > max(min(self.slack, 0.5 * self._size), _BACK_SHARE * self._size):
            return None
        self.is_slow = False
        self._settle_at(level, t_s)
        return Change(turn=Turn.RECOVERED, t_s=t_s, since_s=t_s, speed_ratio=exp(-left))

    def _settle_at(self, level: float, t_s: float) -> None:
        """Test against this level from now on."""
        self.level = level
        self._slower = self._faster = 0.0
        self._slower_since_s = t_s
        self._since_slower.clear()
        self._since_faster.clear()
        self._held.clear()
        self._set_limits()

    def _begin(self, ln_pace: float) -> None:
        self._first.append(ln_pace)
        if len(self._first) == LEAST_WINDOWS:
            self.level = median(self._first)
            self._learned = 1
            for value in self._first:
                self._learn(value)
            self._first.clear()

    def _learn(self, ln_pace: float) -> None:
        """Add a window to what the level and the variance are learned from."""
        assert self.level is not None
        # Symmetric, so that the level is the middle; an epoch's slow start and a pause count no more than that.
        deviation = min(max(ln_pace - self.level, -_FLAT), _FLAT)
        if self._learned < _LEVEL_WINDOWS:
            self._learned += 1
            self.level += deviation / self._learned
        self._minute.append(self.level + deviation)
        if len(self._minute) < _PER_MINUTE:
            return
        self._batch.append(fmean(self._minute))
        self._minute.clear()
        self._minutes.add(self._batch[-1])
        if len(self._batch) == _PER_BATCH:
            self._batches.add(fmean(self._batch))
            self._batch.clear()
        self._set_limits()

    def _set_limits(self) -> None:
        """Work out slack and threshold from what was learned."""
        degrees = max(self._batches.count - 1, 0)
        between = _PER_BATCH * self._batches.variance
        variance = (_PRIOR_BATCHES * _PRIOR_VARIANCE + degrees * between) / (_PRIOR_BATCHES + degrees)
        variance = max(variance, _MINUTES_FACTOR * self._minutes.variance)
        error = sqrt(variance * _PER_MINUTE / max(self._learned, 1))
        self.slack = _SLACK + _SLACK_ERRORS * error
        self.threshold = max(_LEAST_THRESHOLD, _THRESHOLD_LN * variance / (2.0 * self.slack)) * self._backoff
        self._linear = max(_LINEAR + _LINEAR_SDS * sqrt(self._minutes.variance), _LINEAR_SLACKS * self.slack)
