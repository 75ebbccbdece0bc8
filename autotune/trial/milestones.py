"""Milestones of a training: the end of an epoch, an evaluation, a checkpoint, and the steps after each."""

from collections import Counter
from collections.abc import Sequence

from autotune.records import TraineeEvent

EPOCH_END, EVALUATION, CHECKPOINT = "epoch_end", "eval", "checkpoint"
MILESTONES = (EPOCH_END, EVALUATION, CHECKPOINT)
"""Kinds of event that a training comes to besides its steps."""

_STEPS_AFTER = 3  # a milestone, which show that training goes on


class Milestones:
    """Milestones that one trial has come to so far, and the times between its steps.

    Attributes:
        reached: How often it came to each kind.
        steps: Number of steps.
        samples: Number of samples in its steps; None if one did not tell.
        updates: Number of steps, those without an update of the optimizer left out.
        trained_s: Time from its first step until the last look.
        silent_s: Time from its last step until the last look.
        longest_silence_s: Longest time between two steps.
    """

    def __init__(self) -> None:
        self._first_step_s: float | None = None
        self._last_step_s = 0.0
        self._steps_after: dict[str, int] = {}  # the first milestone of each kind
        self.reached: Counter[str] = Counter()
        self.steps = 0
        self.updates = 0
        self.samples: float | None = 0.0
        self.trained_s = 0.0
        self.silent_s = 0.0
        self.longest_silence_s = 0.0

    def look(self, events: Sequence[TraineeEvent], now_s: float) -> None:
        """Take the new events, possibly none.

        Args:
            events: The events, in the order of time.
            now_s: The time.
        """
        for event in events:
            if event.kind == "step":
                self._step(event)
            elif event.kind in MILESTONES:
                self.reached[event.kind] += 1
                self._steps_after.setdefault(event.kind, 0)
        if self._first_step_s is not None:
            self.trained_s, self.silent_s = now_s - self._first_step_s, now_s - self._last_step_s

    @property
    def are_passed(self) -> bool:
        """True if training went on after each kind of milestone."""
        return all(self._steps_after.get(kind, 0) >= _STEPS_AFTER for kind in MILESTONES)

    def _step(self, event: TraineeEvent) -> None:
        if self._first_step_s is None:
            self._first_step_s = event.t_s
        else:
            self.longest_silence_s = max(self.longest_silence_s, event.t_s - self._last_step_s)
        self._last_step_s = event.t_s
        self.steps += 1
        self.updates += event.update
        self.samples = None if self.samples is None or event.samples is None else self.samples + event.samples
        for kind in self._steps_after:
            self._steps_after[kind] += 1
