"""GPU utilization of a point, pooled over its trials, and the effective utilization.

A single trial is too short for a verdict on its GPU: the driver windows of all trials of a point are pooled, and there
is no verdict before there are enough of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from autotune.measure.oscillation import Oscillation, Pattern, Segment, oscillation
from autotune.measure.statistics import moderated_interval, pooled_variance
from autotune.records import GpuRole

LEAST_SAMPLES = 60
"""Driver windows, over all trials of a point, below which there is no verdict."""

LEAST_COVERAGE = 0.9
"""Share of the steady windows that driver windows must cover."""

LEAST_BUSY_TRIALS = 2
"""Trials that a point needs for its rate to be a limit for others."""

LEAST_BUSY = 0.3
"""Utilization that such a point needs: a rate per busy second is uncertain where few seconds were busy."""

MEANINGS: Mapping[Pattern, str] = MappingProxyType(
    {
        Pattern.FLAT: (
            "every step looks alike: where it is high the GPU is the limit, and only a faster step helps (XLA, mixed "
            "precision); where it is low each step waits or its kernels are too small (larger batch, XLA, prefetch)"
        ),
        Pattern.CYCLIC: "the step waits for data at a regular beat: more prefetch, more workers or a cache",
        Pattern.BURSTY: (
            "the GPU is starved now and then, or too fast for the driver to show the beat: see how long steps wait for "
            "data; more prefetch, more workers, evaluation and checkpoints less often"
        ),
        Pattern.DRIFT: "it has not settled: caches still fill, clocks are throttled, or batches change over the epoch",
        Pattern.INSUFFICIENT: "too little was seen to tell: measure longer",
    }
)
"""Usual cause of each pattern, and its usual remedy."""

REFERENCES: Mapping[GpuRole, tuple[float, float]] = MappingProxyType(
    {GpuRole.DATA: (0.60, 0.80), GpuRole.MODEL: (0.85, 0.95)}
)
"""Utilization of two GPUs that share the work well, as users of two RTX 4090 state it; no part of the score."""


class Against(StrEnum):
    """Utilization compared with its reference."""

    BELOW = "below"
    WITHIN = "within"
    ABOVE = "above"


def against_reference(utilization: float, role: GpuRole) -> Against:
    """Compare the utilization of a GPU with `REFERENCES`, both ends of which are within."""
    low, high = REFERENCES[role]
    if utilization < low:
        return Against.BELOW
    return Against.ABOVE if utilization > high else Against.WITHIN


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """Utilization over all trials of a point.

    Attributes:
        trials: Number of trials with at least one driver window.
        samples: Number of driver windows.
        covered_fraction: Share of the steady windows that they cover, 0..1.
        oscillation: Levels, mean and verdict. They are there before there is enough to be shown: see `missing`.
    """

    trials: int
    samples: int
    covered_fraction: float
    oscillation: Oscillation

    @property
    def missing(self) -> str | None:
        """Reason, for people, why there is no verdict yet; None once there is enough."""
        if self.samples < LEAST_SAMPLES:
            return f"{self.samples} of {LEAST_SAMPLES} driver samples"
        if self.covered_fraction < LEAST_COVERAGE - 1e-9:  # 13.5 s of 15 s are enough
            # Rounded down: 89.9 % must not be shown as the 90 % that it is not.
            return f"{math.floor(self.covered_fraction * 100)} % of the time covered, {LEAST_COVERAGE:.0%} needed"
        return None

    @property
    def mean(self) -> float | None:
        """Share of time in which the GPU was busy, 0..1; None while not enough is known."""
        return None if self.missing else self.oscillation.mean


def pooled_utilization(segments: Sequence[Segment], *, step_s: float | None = None) -> Utilization:
    """Pool the trials of a point; each driver window counts with its length.

    Args:
        segments: One for each trial, also those without any driver window: their time was asked for.
    """
    asked_s = math.fsum(segment.asked_s for segment in segments)
    covered_s = math.fsum(segment.covered_s for segment in segments)
    return Utilization(
        trials=sum(len(segment.busy) > 0 for segment in segments),
        samples=sum(len(segment.busy) for segment in segments),
        covered_fraction=min(1.0, covered_s / asked_s) if asked_s > 0.0 else 0.0,
        oscillation=oscillation(segments, step_s=step_s),
    )


def describe(utilization: Utilization) -> str:
    """Return the verdict in words, e.g. ``2-40 % cyclic, period 2.1 s``, ``91 % flat`` or ``not enough yet: ...``."""
    seen = utilization.oscillation
    if utilization.missing or seen.mean is None or seen.low is None or seen.high is None:
        return f"not enough yet: {utilization.missing}"
    if seen.pattern is Pattern.FLAT:
        return f"{_percent(seen.mean)} % flat"
    if seen.pattern is Pattern.DRIFT:
        ends = (_percent(seen.mean - seen.rise / 2), _percent(seen.mean + seen.rise / 2))
        return f"{ends[0]} to {ends[1]} % drifting {'up' if seen.rise > 0 else 'down'}"
    levels = f"{_percent(seen.low)}-{_percent(seen.high)} % {seen.pattern.value}"
    if seen.period_s is None:
        return levels
    decimals = 2 if seen.period_s < 1.0 else 1 if seen.period_s < 10.0 else 0
    return f"{levels}, period {seen.period_s:.{decimals}f} s"


def _percent(share: float) -> int:
    return round(100 * min(1.0, max(0.0, share)))


def busy_rate(samples_per_s: float, utilization: float) -> float:
    """Return the training samples for each second that the GPU was busy: ``T / U`` of one trial.

    Args:
        utilization: Its utilization over the same steady window, above 0.

    Raises:
        ValueError: The GPU was never busy.
    """
    if not utilization > 0.0:
        raise ValueError(f"{samples_per_s} samples/s on a GPU that was busy {utilization:.0%} of the time have no rate")
    return samples_per_s / utilization


@dataclass(frozen=True, kw_only=True)
class BusyPoint:
    """Point from which the limit of a study is learned.

    Attributes:
        utilization: Utilization over all trials of the point; None while not enough is known.
    """

    utilization: float | None
    rates: Sequence[float]


def best_busy_rate(points: Iterable[BusyPoint]) -> float | None:
    """Return the rate that the GPU has shown to be able to keep up: ``r*``.

    For each point of at least `LEAST_BUSY_TRIALS` trials and a utilization of `LEAST_BUSY`, the lower end of the 95 %
    interval of its rate, on logarithms, by a moderated t: the variance of trials is pooled with that of the other
    points (`moderated_interval`). Of these the highest, so that one lucky trial does not become a limit that nothing
    reaches.

    Args:
        points: All points of a study; those that do not qualify are left out.

    Returns:
        Training samples per busy second; None ("not known yet") while no point qualifies.
    """
    repeated = [
        (point.utilization, [math.log(rate) for rate in point.rates])
        for point in points
        if len(point.rates) >= LEAST_BUSY_TRIALS
    ]
    lows = []
    for index, (utilization, ln_rates) in enumerate(repeated):
        if utilization is not None and utilization >= LEAST_BUSY:
            others = (other for place, (_, other) in enumerate(repeated) if place != index)
            mean, half_width = moderated_interval(ln_rates, *pooled_variance(others))
            lows.append(mean - half_width)
    return math.exp(max(lows)) if lows else None


def effective_utilization(samples_per_s: float, best_rate: float) -> float:
    """Return the share of the GPU's shown ability that training really uses: ``E = U · (T/U) / r* = T / r*``.

    Utilization cancels: a slower kernel that keeps the GPU busier does not raise it.

    Returns:
        0..1, and above 1 by as much as r*, a lower bound, lies below the truth; it is left so, to keep the order.
    """
    return samples_per_s / best_rate
