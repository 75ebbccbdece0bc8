"""Steps that will never be seen: found before a trial's first step, while its trainer trains already."""

from collections.abc import Callable, Sequence

from autotune.durations import format_duration
from autotune.process.frameworks import uses_a_framework
from autotune.records import TraineeEvent

WORKING_CORES = 0.1
"""Cores that a process at work keeps busy at least.

One that waits for a lock uses no CPU time, its idle threads a hundredth of a core; imports, tracing and the evaluation
before the first step use most of one, also where they wait for an accelerator.
"""

WORKING_S = 10.0
"""Time over which that is looked at."""

_UNSEEN_S = 30.0  # for a first step after all
_LEAST_GRACE_S = 60.0  # importing a framework takes half a minute on a slow machine
_GRACE_SHARE = 0.2  # of the time to the first step that the config allows: who allows more knows of a preparation
_BETWEEN_LOOKS_S = 5.0


class UnseenSteps:
    """Judge of a trial without a step so far: tells when no step of it will be seen, however long it goes on.

    Two things are certain enough: the observer reports that the trainer trains in a way that hides its steps; or the
    trainer has been at work for long, with none of the frameworks whose steps are observed, and without having
    imported the functions that report steps.

    Args:
        cpu_cores: Returns the mean number of cores that the trial kept busy between two times; None if that is not
            known.
        start_timeout_s: Longest time to the first step that the config allows.
        uses_framework: Returns whether a process, or one below it, has loaded such a framework; None if not known.
    """

    def __init__(
        self,
        cpu_cores: Callable[[float, float], float | None],
        start_timeout_s: float,
        uses_framework: Callable[[int], bool | None] = uses_a_framework,
    ) -> None:
        self._cpu_cores = cpu_cores
        self._grace_s = max(_LEAST_GRACE_S, _GRACE_SHARE * start_timeout_s)
        self._uses_framework = uses_framework
        self._launched: TraineeEvent | None = None
        self._unseen: TraineeEvent | None = None
        self._is_observed = False
        self._may_come = False
        self._next_look_s = 0.0
        self._found = ""

    def note(self, events: Sequence[TraineeEvent]) -> None:
        """Take new events."""
        for event in events:
            match event.kind:
                case "launched":
                    self._launched = event
                case "unseen" if self._unseen is None:
                    self._unseen = event
                case "start":
                    self._is_observed = True
                case "step" | "reporter":
                    self._may_come = True

    def why(self, now_s: float) -> str:
        """Return the reason why no step will be seen, for people; empty as long as one may come."""
        if self._may_come:
            return ""
        self._found = self._found or self._look(now_s)
        return self._found

    def _look(self, now_s: float) -> str:
        if self._unseen is not None and now_s - self._unseen.t_s >= _UNSEEN_S:
            return self._unseen.text or "the trainer trains, and its steps cannot be seen"
        if self._launched is None or not self._is_observed:
            return ""
        if now_s < max(self._launched.t_s + self._grace_s, self._next_look_s):
            return ""
        self._next_look_s = now_s + _BETWEEN_LOOKS_S
        cores = self._cpu_cores(now_s - WORKING_S, now_s)
        if cores is None or cores < WORKING_CORES or self._uses_framework(self._launched.pid) is not False:
            return ""
        worked = format_duration(now_s - self._launched.t_s)
        return f"it has worked for {worked} without PyTorch, TensorFlow or JAX, and steps of others are not seen"
