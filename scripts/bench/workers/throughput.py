"""Throughput of workers on one study: trials a minute, the time between trials, and the commits of a server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from autotune.clock import Clock
from scripts.bench.workers.fleet import Fleet
from scripts.bench.workers.kept_trials import KeptTrials, kept_trials
from scripts.bench.workers.server_commits import commits
from scripts.bench.workers.worker_process import Announced, WorkerJob

START_S = 90.0
"""Time limit for the workers' imports and first trials."""

_LONGEST_TRIAL_S = 10.0  # a whole one, with what the storage takes of it: for deadlines


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput of some workers, from the time on when each has ended its first trial.

    Attributes:
        workers: Their number.
        trials: Number of trials that were counted.
        took_s: Time in which these ended.
        between_s: Times from the end of a worker's trial to the end of its next one, without the trial itself.
        commits: Transactions of the server in that time; None without one.
        kept: What the record holds in the end.
    """

    workers: int
    trials: int
    took_s: float
    between_s: Sequence[float]
    commits: int | None
    kept: KeptTrials

    @property
    def a_minute(self) -> float:
        """Trials a minute."""
        return 60.0 * self.trials / self.took_s

    @property
    def between_cell(self) -> str:
        """Median and 90th percentile of the times between trials, in ms."""
        high = sorted(self.between_s)[math.ceil(0.9 * len(self.between_s)) - 1]
        return f"{1e3 * median(self.between_s):.0f} ({1e3 * high:.0f})"


def measure_throughput(clock: Clock, jobs: Sequence[WorkerJob], judge: WorkerJob, *, trials: int) -> Throughput:
    """Let workers make trials, and count them.

    Args:
        clock: The machine's clock.
        jobs: The workers.
        judge: Opens the study to read it.
        trials: Number of trials that are counted, of each worker on average.

    Raises:
        TrialError: They do not come to that.
        StudyError: The storage cannot be used.
    """
    problem, wanted = judge.problem(), trials * len(jobs)
    with Fleet(clock, jobs) as fleet:
        fleet.wait_until(lambda announced: all(announced), START_S, "the end of the first trial of each")
        commits_before, begins_s = commits(problem), clock.now_s()
        fleet.wait_until(
            lambda announced: len(_since(begins_s, announced)) >= wanted,
            _LONGEST_TRIAL_S * trials,
            f"{wanted} trials",
        )
        commits_after, ends_s = commits(problem), clock.now_s()
        fleet.tell_to_leave(fleet.alive())
        announced = fleet.announced()
    counted = [one for one in _since(begins_s, announced) if one.t_s <= ends_s]
    return Throughput(
        workers=len(jobs),
        trials=len(counted),
        took_s=ends_s - begins_s,
        between_s=[
            after.t_s - before.t_s - after.duration_s
            for some in announced
            for before, after in pairwise(some)
            if begins_s <= before.t_s and after.t_s <= ends_s
        ],
        commits=None if commits_before is None or commits_after is None else commits_after - commits_before,
        kept=kept_trials(problem, (job.problem() for job in jobs), (one.key for some in announced for one in some)),
    )


def _since(begins_s: float, announced: Sequence[Sequence[Announced]]) -> list[Announced]:
    return [one for some in announced for one in some if one.t_s > begins_s]
