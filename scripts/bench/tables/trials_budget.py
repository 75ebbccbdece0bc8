"""Budget in trials for a tuner that plans in seconds: what is left is worth so many trials of the usual length.

Short trials (crashes) give no time back and long ones take none, so that only their number counts.
"""

from autotune.clock import Clock
from autotune.events import Event, TrialEnded
from autotune.records import TrialRecord
from autotune.search.schedule import Budget, expected_trial_s
from autotune.testing.simulated_runner import SimulatedRunner

_FIRST_S = 6.0  # guess at a trial's length before the first one
_SLACK = 0.9  # of a trial: one that is a little longer than usual must not be cut off


class TrialsBudget(Budget):
    """Budget of a number of trials.

    Args:
        clock: The simulation's clock.
        trials: Number of trials.
        beyond: Number of trials that seem to be there beyond these, and vanish when they are made: what a tuner would
            keep for its confirmation.
        runner: Runner of the trials, which has a plan for each.
    """

    def __init__(self, clock: Clock, *, trials: int, beyond: int, runner: SimulatedRunner) -> None:
        super().__init__(clock, started_s=clock.now_s(), budget_s=(trials + beyond) * _FIRST_S)
        self._trials = trials
        self._beyond = beyond
        self._runner = runner
        self._records: list[TrialRecord] = []

    def note(self, event: Event) -> None:
        """Note each finished trial: its length tells what the others are worth."""
        if isinstance(event, TrialEnded):
            self._records.append(event.trial)

    @property
    def wall_s(self) -> float:
        """See `Budget.wall_s`."""
        return self._clock.now_s() + self.left_s()

    def left_s(self) -> float:
        """See `Budget.left_s`."""
        left = self._trials - len(self._runner.plans)
        usual_s = expected_trial_s(self._records) if self._records else _FIRST_S
        return (left + self._beyond + _SLACK) * usual_s if left > 0 else 0.0
