"""The wall: how much of the time budget is left, and for what."""

from collections.abc import Sequence
from statistics import median

from autotune.clock import Clock
from autotune.records import RunRecord

STOPPING_S = 1.0
"""Before the end of the budget, work ends: SIGTERM now, SIGKILL half a second later, the rest for the report."""

CAUTION = 1.2
"""Factor on expected durations where a run that does not fit would cost the answer."""

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
        """When the last run must end, on the clock's monotonic time."""
        return self.started_s + self.budget_s - STOPPING_S

    def elapsed_s(self) -> float:
        """Time since the process started."""
        return self._clock.now_s() - self.started_s

    def left_s(self) -> float:
        """Time until the wall; negative behind it."""
        return self.wall_s - self._clock.now_s()


def expected_run_s(runs: Sequence[RunRecord], point: str | None = None) -> float:
    """How long the next run will take: as the runs of this point did, else as all did.

    Args:
        runs: Runs of this search; those of other searches may have run on a colder machine.
        point: Name of the point; None for a new one.
    """
    good = [(run, _usual_s(run, runs)) for run in runs if run.comparable]
    own = [duration_s for run, duration_s in good if run.point == point]
    everybody = [duration_s for _, duration_s in good] or [run.duration_s for run in runs]
    return median(own or everybody or [_FIRST_GUESS_S])


def _usual_s(run: RunRecord, runs: Sequence[RunRecord]) -> float:
    """How long a run would have taken had it not been the first, which starts with nothing imported or cached."""
    later = [other.measurement.first_step_s for other in runs[1:] if other.measurement]
    if run is not runs[0] or not run.measurement or not later:
        return run.duration_s
    return run.duration_s - max(0.0, run.measurement.first_step_s - median(later))


def pair_s(runs: Sequence[RunRecord], today: str, candidate: str | None) -> float:
    """How long one pair of a confirmation will take."""
    return expected_run_s(runs, today) + expected_run_s(runs, candidate)
