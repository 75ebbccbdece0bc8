"""Loss curves of trainings, and the levels, errors and times read from them.

Losses are averaged because the median of batches depends on their size.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from autotune.records import LossCurve, TraineeEvent

STRETCHES = 96
"""Equal stretches of time in a curve."""

LATE = 0.75
"""Start of the stretch averaged for the level at a time, as a share of that time."""

_LEAST_LOSSES = 8


@dataclass(frozen=True, kw_only=True)
class LossLevel:
    """Level of a loss at a time: its mean over the stretch before.

    Attributes:
        error: Standard error, from differences of consecutive stretches; None if there are fewer than four.
    """

    mean: float
    error: float | None


def loss_curve(events: Sequence[TraineeEvent], longest_s: float) -> tuple[LossCurve | None, float | None]:
    """Return the curve of a training's finite losses, and the mean of the first three.

    Args:
        events: In time order.
        longest_s: Time after the first step until which losses count.

    Returns:
        The curve, None with fewer than eight losses; the mean.
    """
    seen = list(_losses(events, longest_s, of_evaluations=False))
    first = fmean(loss for _, loss, _ in seen[:3]) if seen else None
    if len(seen) < _LEAST_LOSSES:
        return None, first
    length_s = seen[-1][0] / STRETCHES
    stretches: dict[int, list[tuple[float, float, float | None]]] = {}
    for one in seen:
        stretches.setdefault(min(STRETCHES - 1, int(one[0] / length_s)) if length_s else 0, []).append(one)
    lasts = [stretch[-1] for stretch in stretches.values()]
    if len(lasts) < _LEAST_LOSSES:
        return None, first
    ends_s = [round((place + 1) * length_s, 4) for place in stretches]
    means = [fmean(loss for _, loss, _ in stretch) for stretch in stretches.values()]
    return _curve(ends_s, means, [samples for _, _, samples in lasts]), first


def evaluation_curve(events: Sequence[TraineeEvent], longest_s: float) -> LossCurve | None:
    """Return the losses of the latest evaluations, each at its start.

    Args:
        events: In time order.
        longest_s: Time after the first step until which evaluations count.
    """
    seen: dict[float, tuple[float, float | None]] = {}
    for passed_s, loss, samples in _losses(events, longest_s, of_evaluations=True):
        if next(reversed(seen), 0.0) < (at_s := round(passed_s, 4)):
            seen[at_s] = loss, samples
    latest = dict([*seen.items()][-STRETCHES:])
    if not latest:
        return None
    return _curve(latest, [loss for loss, _ in latest.values()], [samples for _, samples in latest.values()])


def _losses(
    events: Sequence[TraineeEvent], longest_s: float, *, of_evaluations: bool
) -> Iterator[tuple[float, float, float | None]]:
    """Yield the finite losses: time after the first step, loss, samples until then."""
    first_step_s: float | None = None
    samples: float | None = 0.0
    for event in events:
        if event.kind == "step":
            first_step_s = event.t_s if first_step_s is None else first_step_s
            samples = None if samples is None or event.samples is None else samples + event.samples
        if first_step_s is None or event.loss is None or (event.kind == "eval") is not of_evaluations:
            continue
        passed_s = event.t_s - first_step_s - ((event.duration_s or 0.0) if of_evaluations else 0.0)
        if math.isfinite(event.loss) and 0.0 <= passed_s <= longest_s:
            yield passed_s, event.loss, samples


def _curve(ends_s: Iterable[float], losses: Iterable[float], samples: Sequence[float | None]) -> LossCurve:
    known = tuple(one for one in samples if one is not None)
    rounded = tuple(float(f"{loss:.7g}") for loss in losses)
    return LossCurve(ends_s=tuple(ends_s), losses=rounded, samples=known if len(known) == len(samples) else ())


def through_points(points: LossCurve) -> LossCurve:
    """Return a curve of equal stretches from the first evaluation on, linear between them in the logarithm of time."""
    import numpy as np  # not needed to read a study without a race

    first_s, last_s = points.ends_s[0], points.ends_s[-1]
    stretches = (last_s * place / STRETCHES for place in range(1, STRETCHES + 1))
    ends_s = (*(end_s for end_s in stretches if first_s <= end_s < last_s), last_s)
    logarithms = np.log(points.ends_s)
    return LossCurve(
        ends_s=ends_s,
        losses=tuple(np.interp(np.log(ends_s), logarithms, points.losses).tolist()),
        samples=tuple(np.interp(ends_s, points.ends_s, points.samples).tolist()) if points.samples else (),
    )


def level_at(curve: LossCurve, t_s: float, *, from_s: float | None = None) -> LossLevel:
    """Return the level of a loss at a time after the first step.

    Args:
        from_s: Start of the stretch that is averaged; None for `LATE` of the time.
    """
    begin_s = LATE * t_s if from_s is None else from_s
    parts = [
        (loss, min(end_s, t_s) - max(start_s, begin_s))
        for (start_s, end_s), loss in zip(pairwise((0.0, *curve.ends_s)), curve.losses, strict=True)
    ]
    inside = [(loss, length_s) for loss, length_s in parts if length_s > 0.0]
    if not inside:  # between two losses, or after the last
        return LossLevel(mean=parts[-1][0] if t_s > curve.ends_s[-1] else parts[0][0], error=None)
    mean = math.fsum(loss * length_s for loss, length_s in inside) / math.fsum(length_s for _, length_s in inside)
    losses = [loss for loss, _ in inside]
    if len(losses) < 4:  # stretches
        return LossLevel(mean=mean, error=None)
    variance = fmean((later - earlier) ** 2 for earlier, later in pairwise(losses)) / 2.0
    return LossLevel(mean=mean, error=math.sqrt(variance / len(losses)))


def fall_at(curve: LossCurve, t_s: float) -> float:
    """Return the decrease of a loss per unit of ln time; negative if it rises."""
    late, before = level_at(curve, t_s), level_at(curve, LATE * t_s, from_s=LATE * LATE * t_s)
    return (before.mean - late.mean) / -math.log(LATE)


def time_of(curve: LossCurve, samples: float) -> float:
    """Return the time after the first step at which ``samples``, at most the curve's, had been trained on."""
    points = [(0.0, 0.0), *zip(curve.samples, curve.ends_s, strict=True)]
    for (before, before_s), (after, after_s) in pairwise(points):
        if after >= samples:
            share = (samples - before) / (after - before) if after > before else 1.0
            return before_s + share * (after_s - before_s)
    return curve.ends_s[-1]


def time_to(curves: Sequence[LossCurve], level: float, longest_s: float) -> float | None:
    """Return the time at which the mean level of some curves first reaches a level; None if it does not."""
    before = None
    for place in range(1, STRETCHES + 1):
        t_s = longest_s * place / STRETCHES
        mean = fmean(level_at(curve, t_s).mean for curve in curves)
        if mean <= level:
            if before is None or before[1] <= mean:
                return t_s
            return before[0] + (t_s - before[0]) * (before[1] - level) / (before[1] - mean)
        before = (t_s, mean)
    return None
