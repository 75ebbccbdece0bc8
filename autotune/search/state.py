"""What one search knows: the level of each point on record, the model of them all, and what its own runs showed."""

from collections.abc import Sequence
from statistics import median

from autotune.measure.window import WindowGoal
from autotune.records import RunRecord
from autotune.sampler.acquisition import Allocation, Allocator
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.heuristics import advised
from autotune.sampler.inert import without_turning
from autotune.sampler.observations import Levels, expected_run_sd, of_space
from autotune.search.confirm import Candidate, better_than_today
from autotune.search.findings import Findings
from autotune.search.problem import Setup
from autotune.space.space import Space
from autotune.statistics import optimal_window_s
from autotune.study.record import Study
from autotune.study.summary import speed_over
from autotune.trial.execution import Execution


class Knowledge:
    """Grows with each run; asked by the tuner before each.

    Args:
        setup: What is tuned.
        study: The record, with the runs of earlier searches.
        findings: What is found out about the trainer besides its speed.
        seed: Makes the choices of the sampler repeatable.

    Attributes:
        space: What is searched: the setup's, without what was found to be of no use.
        today: Name of today's point.
        runs: Those of this search, oldest first.
        sd: Standard deviation of ln score between runs of one point.
    """

    def __init__(self, setup: Setup, study: Study, findings: Findings, *, seed: int) -> None:
        self._setup = setup
        self._study = study
        self._findings = findings
        self._seed = seed
        self._within_variances_s: list[float] = []
        self._saw_a_pass = False
        self.today = setup.space.name(setup.space.today)
        self.runs: list[RunRecord] = []
        self.search_in(setup.space)

    def search_in(self, space: Space) -> None:
        """Searches this space from now on, with all that the record knows of it."""
        dead = self._findings.dead
        self.space = without_turning(space, dead)
        records = of_space(self._study.records(), self._setup.space)
        self._levels = Levels(self.space, self._setup.objective, records, dead=dead)
        self._allocator = Allocator(self.space, self._seed)
        self._fit()

    def learn(self, record: RunRecord, done: Execution) -> None:
        """Takes one more run.

        Args:
            record: The run, as it stands in the record.
            done: What was seen of it.
        """
        self.runs.append(record)
        self._saw_a_pass = self._saw_a_pass or done.saw_a_pass
        if done.window is not None and record.comparable:
            self._within_variances_s.append(done.window.within_variance_s())
        self._levels.add(record)
        self._fit()
        if self._findings.learn(
            record,
            done.losses,
            done.folder.stdout,
            samples=done.window.samples if done.window else None,
            space=self.space,
            records=self.runs,
            levels=self._levels,
            sd=self.sd,
        ):
            self.search_in(self.space)

    def _fit(self) -> None:
        self.sd = expected_run_sd(self._levels)
        self._allocator.learn(self._levels, self.sd)

    # Which next

    def next_run(self, longest_s: float) -> Allocation | None:
        """The run that promises most now; None if there is none.

        Args:
            longest_s: How long it may be expected to take.
        """
        why_not = self._feasible().why_not
        advice = advised(
            self.space,
            self._levels,
            self._data_wait(),
            has_gpu=bool(self._setup.machine.gpus),
            short_passes=self._saw_a_pass,
        )
        possible = next((values for values in advice if why_not(values) is None), None)
        return self._allocator.next_run(self.today, possible, why_not, longest_s)

    def promise(self, runs: int) -> float:
        """How much better the best point will probably be, in ln score, after so many more runs."""
        return self._allocator.promise(self.today, runs, self._feasible().why_not)

    def goal(self) -> WindowGoal:
        """How long the next run measures: the best use of time at the noise that this study has shown."""
        limits = self._setup.limits
        starts_s = [run.measurement.first_step_s for run in self.runs if run.measurement]
        target_s = limits.min_s
        if starts_s and self._within_variances_s:
            target_s = optimal_window_s(
                median(starts_s),
                median(self._within_variances_s),
                self.sd**2,
                min_s=limits.min_s,
                max_s=limits.max_s,
            )
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s)

    def _feasible(self) -> Feasibility:
        margin = self._setup.limits.memory_margin
        return Feasibility(self.space, self._levels, self._setup.machine, memory_margin=margin)

    # What is known so far

    def better(self) -> list[Candidate]:
        """The points that are believed to be better than today's, best first."""
        return better_than_today(self._levels, self._allocator.believed(), self.today)

    def good_runs_of_today(self) -> list[RunRecord]:
        """This search's runs of today's config that gave comparable numbers."""
        return [run for run in self.runs if run.point == self.today and run.comparable]

    def speedup(self, runs: Sequence[RunRecord]) -> float | None:
        """Speed of some runs over today's in this search; None if either gave no comparable numbers."""
        baseline = self.good_runs_of_today()
        good = [run for run in runs if run.comparable]
        return speed_over(good, baseline) if good and baseline else None

    def pace(self) -> float:
        """Samples per second of the fastest run, or of today's where no more is asked; 0 before there is one."""
        asked = self.good_runs_of_today() if self._setup.objective.by_utilization else self.runs
        return max((run.comparable.samples_per_s for run in asked if run.comparable), default=0.0)

    def has_settled(self) -> bool:
        """Whether some run's caches were filled in time, so that another's were too large or too slow."""
        return any(run.comparable and self.space.settles(run.values) for run in self.runs)

    def _data_wait(self) -> float | None:
        """Share of the time that today's training loop waits for data; None if it does not say."""
        waits = [run.comparable.data_wait_fraction for run in self.good_runs_of_today() if run.comparable]
        known = [wait for wait in waits if wait is not None]
        return median(known) if known else None
