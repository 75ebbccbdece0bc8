"""Losses of a trial, compared with those of the baseline: a diverging training may stay finite during a short trial."""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

FAR = 10.0
"""A trial has diverged when its loss, relative to its own first, is this many times the baseline's at the same step."""

_FIRST = 3  # losses whose median is the level at which a trial began
_FRESH = 0.75  # of the steps: a loss that is older does not tell where training is
_PART = 4  # a quarter of the losses tells the level at its end
_NORMAL_MAD = 0.6745  # median absolute deviation of a normal distribution with standard deviation 1
_OF_A_MEDIAN = 1.2533  # standard error of a median over that of a mean: sqrt(pi / 2)
_LATEST = 5  # losses that say where it is now: a single bad batch does not count


@dataclass(frozen=True, kw_only=True)
class LossLevel:
    """Level of a loss around some step.

    Attributes:
        ratio: Level relative to where the loss began.
        error: Standard error of that.
    """

    ratio: float
    error: float


class Losses:
    """Finite losses of one trial, by step.

    They are compared relative to where each trial began, since a loss that is summed over the batch scales with the
    batch size.
    """

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._seen = 0
        self._last_is_finite = True

    def add(self, step: int, loss: float) -> None:
        """Add a loss that was reported after this many steps."""
        self._seen += 1
        self._last_is_finite = math.isfinite(loss)
        if self._last_is_finite:
            self._steps.append(step)
            self._values.append(loss)

    @property
    def are_no_numbers(self) -> bool:
        """True if the last reported loss, or most of them, were NaN or infinite.

        Some losses (CTC on a short clip) are infinite for a batch now and then and training goes on well; a trainer
        that swallows out-of-memory errors alternates. So it has to stay that way, or to be the rule.
        """
        return self._seen > 0 and (not self._last_is_finite or 2 * len(self._values) < self._seen)

    @property
    def are_many(self) -> bool:
        """True if there are enough of them for a level, which may be impossible for other reasons."""
        return len(self._values) >= _FIRST + _LATEST

    @property
    def first(self) -> float | None:
        """Level at which it began; None without a loss."""
        return median(self._values[:_FIRST]) if self._values else None

    def level(self, step: float) -> LossLevel | None:
        """Return the level of the loss in the last part before a step; None where too few losses tell.

        The spread is taken from the differences of losses that follow one another, which a falling level hardly moves.

        Args:
            step: Number of updates.
        """
        steps = [at for at in self._steps if at <= step]
        until = self._values[: len(steps)]
        latest = until[-max(_LATEST, len(until) // _PART) :]
        began = median(self._values[:_FIRST]) if self._values else 0.0
        if len(until) < _FIRST + _LATEST or began <= 0 or steps[-1] < _FRESH * step:
            return None
        spread = median(abs(after - before) for before, after in pairwise(latest)) / (_NORMAL_MAD * math.sqrt(2))
        error = _OF_A_MEDIAN * spread * math.sqrt(1 / len(latest) + 1 / _FIRST) / began
        return LossLevel(ratio=median(latest) / began, error=error)

    def are_far_above(self, baseline: "Losses") -> bool:
        """Return whether the latest losses are `FAR` times as high as any of the baseline up to the same step."""
        if len(self._values) < _FIRST + _LATEST or len(baseline._values) < _FIRST:
            return False
        began, baseline_began = median(self._values[:_FIRST]), median(baseline._values[:_FIRST])
        if began <= 0 or baseline_began <= 0:
            return False  # no zero to measure from
        now = median(self._values[-_LATEST:]) / began
        if now <= FAR:
            return False
        # Beyond the baseline's last step it is compared with all of the baseline's losses.
        until_now = zip(baseline._steps, baseline._values, strict=True)
        highest = max((loss / baseline_began for step, loss in until_now if step <= self._steps[-1]), default=1.0)
        return now > FAR * max(1.0, highest)
