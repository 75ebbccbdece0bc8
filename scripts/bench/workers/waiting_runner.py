"""Runner whose trials wait in this process: they take a second of real time, and report steps."""

import math
import os
import random
from collections.abc import Sequence

from autotune.clock import Clock
from autotune.config.document import Document
from autotune.records import Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.launch import Watch

TRIAL_S = 1.0
"""Time that a trial takes."""

SECTION = "fake"
"""Section of the config whose numbers decide the speed."""

_LOOK_S = 0.25
_START_S = 0.1
_SAMPLES = 8.0
_NOISE = 0.02  # of ln speed, between trials
_STEP_NOISE = 0.03


class WaitingRunner:
    """Runner of trials that only wait; see `autotune.trial.launch.Runner`.

    What the watch says does not shorten them: a trainer takes a while to leave, too.

    Args:
        clock: The machine's clock.
        seed: Seed of the noise.
    """

    def __init__(self, clock: Clock, seed: int) -> None:
        self._clock = clock
        self._rng = random.Random(seed)

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """See `Runner.run`."""
        started_s = self._clock.now_s()
        if started_s >= deadline_s:
            return TrialExit(started_s=started_s, ended_s=started_s, exit_code=None, stop=Stop.DEADLINE)
        TrialFolder(plan.folder).create()
        coming = self._events(started_s, _step_s(plan.config_text))
        ends_s = min(started_s + TRIAL_S, deadline_s)
        stop: Stop | None = None
        while (now_s := self._clock.now_s()) < ends_s:
            self._clock.wait(min(_LOOK_S, ends_s - now_s))
            now_s = self._clock.now_s()
            due = [event for event in coming if event.t_s <= now_s]
            coming = coming[len(due) :]
            stop = stop or watch(due)
        if stop is None and ends_s == deadline_s:
            stop = Stop.DEADLINE
        return TrialExit(
            started_s=started_s, ended_s=self._clock.now_s(), exit_code=None if stop else 0, stop=stop, oom_killed=False
        )

    def _events(self, started_s: float, step_s: float) -> Sequence[TraineeEvent]:
        """Return all that a trial reports, in order."""
        stream = f"{os.getpid()}.0"
        t_s = started_s + _START_S
        events = [TraineeEvent(kind="start", t_s=t_s, stream=stream)]
        step_s *= math.exp(self._rng.gauss(0.0, _NOISE))
        while (t_s := t_s + step_s * math.exp(self._rng.gauss(0.0, _STEP_NOISE))) < started_s + TRIAL_S:
            events.append(TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=_SAMPLES))
        return events


def _step_s(config_text: str) -> float:
    """Return the time of a step: shortest, by a third, where all numbers are at their best."""
    numbers = Document.parse(config_text).data[SECTION].values()
    away = [abs(float(number) - best) for number, best in zip(numbers, (6, 2, 5, 7, 1), strict=False)]
    return 0.04 * (1.0 + 0.5 * sum(away) / (len(away) * 7.0))
