"""A `Runner` in virtual time: trainers that are a few numbers, so that a search of half an hour takes a second."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from autotune.clock import VirtualClock
from autotune.records import RunPlan, Stop, TraineeEvent, TrialExit
from autotune.trial.folder import RunFolder
from autotune.trial.launch import Watch

LOOK_S = 0.25
"""Between two calls of the watch, the longest that a runner may take."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a trainer behaves under one config.

    Attributes:
        samples: Samples in a step.
        step_s: Time of a step, on average.
        start_s: From its start until its first step begins; infinite for one that never gets there.
        noise: Spread between its runs, of ln speed.
        steps: How many it makes before it ends by itself; None for one that goes on.
        exit_code: What it ends with then.
        stderr: What it says last.
        epoch: Steps in an epoch; None for endless ones.
        loss: What it reports with each step.
    """

    samples: float = 8.0
    step_s: float = 0.05
    start_s: float = 1.0
    noise: float = 0.0
    steps: int | None = None
    exit_code: int = 0
    stderr: str = ""
    epoch: int | None = None
    loss: float | None = None


Trainer = Callable[[Mapping[str, Any]], Training]
"""What a parsed config makes of the trainer."""


class Simulator:
    """Makes runs by moving the clock on.

    Args:
        clock: Its own clock, which it moves.
        trainer: What is run.
        seed: Of the noise.

    Attributes:
        plans: What was started, in order.
    """

    def __init__(self, clock: VirtualClock, trainer: Trainer, *, seed: int = 0) -> None:
        self._clock = clock
        self._trainer = trainer
        self._rng = random.Random(seed)
        self.plans: list[RunPlan] = []

    def run(self, plan: RunPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """See `autotune.trial.launch.Runner.run`."""
        started_s = self._clock.now_s()
        if started_s >= deadline_s:
            return TrialExit(started_s=started_s, ended_s=started_s, exit_code=None, stop=Stop.DEADLINE)
        RunFolder(plan.folder).create()
        self.plans.append(plan)
        training = self._trainer(yaml.safe_load(plan.config_text))
        events = self._events(training, started_s)
        coming = next(events, None)
        stop: Stop | None = None
        while stop is None:
            # An end of its own, and the deadline, come when they come, and not at the next look.
            due_s = min(self._clock.now_s() + LOOK_S, deadline_s)
            due = []
            while coming is not None and coming.t_s <= due_s:
                due.append(coming)
                coming = next(events, None)
            has_ended = coming is None
            self._clock.wait((due[-1].t_s if has_ended and due else due_s) - self._clock.now_s())
            stop = watch(due)
            if has_ended:
                return self._exit(started_s, training, exit_code=training.exit_code)
            if stop is None and self._clock.now_s() >= deadline_s:
                stop = Stop.DEADLINE
        return self._exit(started_s, training, stop=stop)

    def _exit(
        self, started_s: float, training: Training, *, exit_code: int | None = None, stop: Stop | None = None
    ) -> TrialExit:
        return TrialExit(
            started_s=started_s,
            ended_s=self._clock.now_s(),
            exit_code=exit_code,
            stop=stop,
            stderr_tail=training.stderr,
            oom_killed=False,
        )

    def _events(self, training: Training, started_s: float) -> Iterator[TraineeEvent]:
        """The steps of one run, without end where the trainer has none."""
        stream = f"{os.getpid()}.0"
        step_s = training.step_s * 2.718281828 ** self._rng.gauss(0.0, training.noise)
        t_s = started_s + training.start_s
        yield TraineeEvent(kind="start", t_s=t_s, stream=stream)
        made = 0
        while training.steps is None or made < training.steps:
            # The first step compiles; all others vary a little.
            t_s += step_s * (5.0 if made == 0 else self._rng.uniform(0.95, 1.05))
            made += 1
            yield TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=training.samples, loss=training.loss)
            if training.epoch and made % training.epoch == 0:
                yield TraineeEvent(kind="epoch_end", t_s=t_s, stream=stream)
