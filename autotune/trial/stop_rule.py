"""What is decided while a run goes on: whether enough is known, or nothing more is to be hoped for."""

import math
from collections.abc import Callable, Sequence

from autotune.clock import Clock
from autotune.measure.window import Window, WindowGoal, steady_window
from autotune.records import Stop, TraineeEvent
from autotune.trial.losses import Losses

_BAD_LOSSES = 3  # in a row; a single one happens, while a loss scale settles or on a clip that is too short
_LONGEST_BETWEEN_LOOKS_S = 1.0
_LONGEST_SILENCE_S = 30.0
_SILENT_STEPS = 10.0  # ... or this many times the longest step so far, if that is more


class RunWatch:
    """Collects a run's events and says when to stop it.

    Args:
        clock: Source of time.
        goal: How long the measuring window has to be.
        settles: Whether the window starts only after one pass over the data (caches).
        start_timeout_s: How long the first step may take.
        started_s: When the run is started.
        give_up_s: When to stop with whatever there is.
        hopeless: Whether the window so far shows that the run cannot be of interest.
        progress: Told the number of steps so far, at most at every call.
        todays_losses: How the loss of today's config went; None if that is not known.

    Attributes:
        steps: How many it has made so far.
        events: All that it has reported.
        losses: How its loss goes.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        goal: WindowGoal,
        settles: bool,
        start_timeout_s: float,
        started_s: float,
        give_up_s: float,
        hopeless: Callable[[Window], bool],
        progress: Callable[[int], None],
        todays_losses: Losses | None = None,
    ) -> None:
        self._clock = clock
        self._goal = goal
        self._settles = settles
        self._start_deadline_s = started_s + start_timeout_s
        self._give_up_s = give_up_s
        self._hopeless = hopeless
        self._progress = progress
        self._todays_losses = todays_losses
        self._next_look_s = -math.inf
        self._last_step_s: float | None = None
        self._longest_step_s = 0.0
        self._bad_losses = 0
        self._has_diverged = False
        self._settled_s: float | None = None
        self.steps = 0
        self.events: list[TraineeEvent] = []
        self.losses = Losses()

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        """Takes new events, possibly none; answers why to stop, if at all."""
        self.events.extend(events)
        for event in events:
            if event.kind == "step":
                self._note_step(event)
            if event.loss is not None:
                self._note_loss(event.loss)
            if event.kind == "epoch_end" and self._settled_s is None:
                self._settled_s = event.t_s
        self._progress(self.steps)
        if self._has_diverged:
            return Stop.DIVERGED

        now_s = self._clock.now_s()
        if self._last_step_s is None:
            return Stop.NEVER_STARTED if now_s >= min(self._start_deadline_s, self._give_up_s) else None
        if now_s - self._last_step_s > max(_LONGEST_SILENCE_S, _SILENT_STEPS * self._longest_step_s):
            return Stop.HUNG
        if now_s >= self._give_up_s:
            return Stop.ENOUGH
        if now_s >= self._next_look_s and not self.is_cold:
            window = self.window()
            if self._goal.is_met_by(window):
                return Stop.ENOUGH
            if window is not None and self._hopeless(window):
                return Stop.HOPELESS
            self._next_look_s = min(self._goal.next_look_s(now_s, window), now_s + _LONGEST_BETWEEN_LOOKS_S)
        return None

    @property
    def saw_a_pass(self) -> bool:
        """Whether the run came to the end of a pass over the data."""
        return self._settled_s is not None

    @property
    def is_cold(self) -> bool:
        """Whether caches have to be filled first, and are not yet."""
        return self._settles and self._settled_s is None

    def window(self) -> Window | None:
        """The steady window of what was seen so far."""
        return steady_window(self.events, after_s=self._settled_s if self._settles else None)

    def _note_loss(self, loss: float) -> None:
        self._bad_losses = 0 if math.isfinite(loss) else self._bad_losses + 1
        self.losses.add(self.steps, loss)
        self._has_diverged = (
            self._has_diverged
            or self._bad_losses >= _BAD_LOSSES
            or (self._todays_losses is not None and self.losses.are_far_above(self._todays_losses))
        )

    def _note_step(self, event: TraineeEvent) -> None:
        if self._last_step_s is not None:
            self._longest_step_s = max(self._longest_step_s, event.t_s - self._last_step_s)
        self._last_step_s = event.t_s
        self.steps += 1
