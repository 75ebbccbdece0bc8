"""The wall: how much of the time budget is left, and for what."""

from collections.abc import Sequence
from statistics import median

from autotune.clock import Clock
from autotune.records import TrialRecord

STOPPING_S = 1.0
"""Before the end of the budget, work ends: SIGTERM now, SIGKILL half a second later, the rest for the report."""

CAUTION = 1.2
"""Factor on expected durations where a trial that does not fit would cost the answer."""

_FIRST_GUESS_S = 10.0


class Budget:
    """A budget that started with the process.

    Args:
        clock: Source of time.
        started_s: When the process started, on the clock's monotonic time.
        budget_s: Length of the budget.
    """

    def __init__(self, clock: Clock, *, started_s: float, budget_s: float) -> None:
        self._clock = clock
        self.started_s = started_s
        self.budget_s = budget_s

    @property
    def wall_s(self) -> float:
        """When the last trial must end, on the clock's monotonic time."""
        return self.started_s + self.budget_s - STOPPING_S

    def elapsed_s(self) -> float:
        """Time since the process started."""
        return self._clock.now_s() - self.started_s

    def left_s(self) -> float:
        """Time until the wall; negative behind it."""
        return self.wall_s - self._clock.now_s()


def expected_trial_s(trials: Sequence[TrialRecord], point: str | None = None) -> float:
    """How long the next trial will take: as the trials of this point did, else as all did.

    Args:
        trials: Runs of this search; those of other searches may have run on a colder machine.
        point: Name of the point; None for a new one.
    """
    good = [(trial, _usual_s(trial, trials)) for trial in trials if trial.comparable]
    own = [duration_s for trial, duration_s in good if trial.point == point]
    everybody = [duration_s for _, duration_s in good] or [trial.duration_s for trial in trials]
    return median(own or everybody or [_FIRST_GUESS_S])


def _usual_s(trial: TrialRecord, trials: Sequence[TrialRecord]) -> float:
    """How long a trial would have taken had it not been the first, which starts with nothing imported or cached."""
    later = [other.measurement.first_step_s for other in trials[1:] if other.measurement]
    if trial is not trials[0] or not trial.measurement or not later:
        return trial.duration_s
    return trial.duration_s - max(0.0, trial.measurement.first_step_s - median(later))


def pair_s(trials: Sequence[TrialRecord], today: str, candidate: str | None) -> float:
    """How long one pair of a confirmation will take."""
    return expected_trial_s(trials, today) + expected_trial_s(trials, candidate)
