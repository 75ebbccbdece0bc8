"""Pace of a training at this moment, from the steps that it reports."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.window import main_stream
from autotune.records import TraineeEvent


@dataclass(frozen=True, kw_only=True)
class StepPace:
    """Pace of a training loop over a past stretch of time.

    Attributes:
        steps_per_s: Steps per second, from the first step of the stretch to the last.
        samples_per_s: Samples per second; None where a step does not say how many samples it had.
        data_wait_fraction: Share of the time, 0..1, in which the loop waited for data; None where steps do not say.
        newest_s: Monotonic time of the last step.
    """

    steps_per_s: float
    samples_per_s: float | None
    data_wait_fraction: float | None
    newest_s: float


class RecentSteps:
    """Steps of the last stretch of time; no warm-up is cut, since nothing is compared with it.

    Args:
        length_s: Length of the stretch.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._steps: list[TraineeEvent] = []

    def add(self, events: Sequence[TraineeEvent]) -> None:
        """Add events, in order of time; only steps count."""
        self._steps += [event for event in events if event.kind == "step"]

    def pace(self, now_s: float) -> StepPace | None:
        """Return the pace of the busiest loop; None with fewer than two steps in the stretch up to ``now_s``."""
        del self._steps[: bisect_left(self._steps, now_s - self._length_s, key=lambda step: step.t_s)]
        stream = main_stream(self._steps)
        steps = [step for step in self._steps if step.stream == stream]
        if len(steps) < 2 or steps[-1].t_s <= steps[0].t_s:
            return None
        first, *rest = steps
        length_s = rest[-1].t_s - first.t_s
        samples = [step.samples for step in rest if step.samples is not None]
        waits_s = [step.wait_s for step in rest if step.wait_s is not None]
        return StepPace(
            steps_per_s=len(rest) / length_s,
            samples_per_s=math.fsum(samples) / length_s if len(samples) == len(rest) else None,
            data_wait_fraction=min(1.0, math.fsum(waits_s) / length_s) if len(waits_s) == len(rest) else None,
            newest_s=rest[-1].t_s,
        )
