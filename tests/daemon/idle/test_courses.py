"""Courses of a machine, drawn by chance: no start while somebody is there, and no stay when somebody comes."""

import random
from bisect import bisect
from typing import Any

import pytest

from autotune.daemon.idleness import Arrivals, Idleness, IdlePolicy, MachineReading
from tests.daemon.idle.readings import STRANGER, Readings

POLICY = IdlePolicy()
BUDGET_S, LENGTH_S = 100.0, 8_000.0
OWN = {"has_own": True, "utilization": 0.9}
SIGNS: list[tuple[dict[str, Any], float]] = [
    ({"foreign": (STRANGER,)}, 0.0),
    ({"unlisted_bytes": 2 << 30}, 0.0),
    ({"why_unknown": "GPU lost"}, 0.0),
    ({}, 3.0),
]
"""What is seen of the GPU, and of the CPU in cores, while somebody may be there."""

LATEST_S = [0.5, 0.75, 10.5, 1.25]
"""Time after which each of them has made a search leave."""


class Course:
    """Machine where visits take turns with quiet times, and the readings of it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.readings = random.Random(seed), Readings()
        self.signs, self.borders_s = self.rng.choices(range(len(SIGNS)), k=400), [1_050.0]
        while self.borders_s[-1] < LENGTH_S:
            self.borders_s.append(self.borders_s[-1] + self.rng.uniform(15.0, 250.0))
            self.borders_s.append(self.borders_s[-1] + self.rng.choice((20.0, 605.0, self.rng.uniform(5.0, 1_500.0))))

    def read(self, after_s: float, gpu: dict[str, Any]) -> MachineReading:
        """Return the reading some time after the last one; `gpu` is what a search of ours does there."""
        passed = bisect(self.borders_s, self.readings.t_s + after_s)
        seen, cores = SIGNS[self.signs[passed // 2]] if passed % 2 else ({}, 0.05)
        return self.readings.after(after_s, gpu={**gpu, **seen}, foreign_cores=cores)

    def quiet_s(self) -> float:
        """Return for how long nobody has been there; below zero while somebody is, since when."""
        passed, now_s = bisect(self.borders_s, self.readings.t_s), self.readings.t_s
        if passed % 2:
            return self.borders_s[passed - 1] - now_s
        return now_s - (self.borders_s[passed - 1] if passed else 1_000.0)


@pytest.mark.parametrize("seed", range(12))
def test_no_start_while_somebody_is_there_and_no_stay_when_somebody_comes(seed: int) -> None:
    """A search starts soon after ten quiet minutes, and again after one that nobody has ended; it leaves in time."""
    course, idleness, ended_s = Course(seed), Idleness(), 1_000.0
    state = idleness.update(course.read(0.0, {}))
    while course.readings.t_s < LENGTH_S - BUDGET_S:
        if not state.is_idle:
            state = idleness.update(course.read(state.next_reading_s * course.rng.uniform(1.0, 1.1), {}))
            assert min(course.quiet_s() - POLICY.idle_s, course.readings.t_s - ended_s) < 30.0
            continue
        assert course.quiet_s() >= POLICY.idle_s or -1.25 <= course.quiet_s() < 0.0
        arrivals, began_s, reason = Arrivals(), course.readings.t_s, None
        while reason is None and course.readings.t_s < began_s + BUDGET_S:
            reason = arrivals.update(course.read(POLICY.close_interval_s * course.rng.uniform(1.0, 1.2), OWN))
            assert reason is None or course.quiet_s() < 0.0
            sign = course.signs[bisect(course.borders_s, course.readings.t_s) // 2]
            assert reason is not None or -course.quiet_s() < LATEST_S[sign]
        ended_s = course.readings.t_s
        idleness = Idleness(idle_since_s=None if reason else state.idle_since_s)
        state = idleness.update(course.read(0.3, {}))
