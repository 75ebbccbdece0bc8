"""One search, from its first process to its answer. Read `Tuner.run` first, then `Tuner._run`: one trial."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autotune.clock import Clock
from autotune.durations import format_duration
from autotune.errors import RunError
from autotune.measure.statistics import optimal_window_s
from autotune.measure.window import WindowGoal
from autotune.records import (
    Ending,
    Event,
    IncumbentChanged,
    PhaseChanged,
    Purpose,
    RunEnded,
    RunProgress,
    RunRecord,
    RunStarted,
    SearchEnded,
    SearchResult,
    SearchStarted,
    Validity,
    Values,
)
from autotune.score import LEAST_PAIRS, LEAST_SCORE_GAIN
from autotune.search.allocate import WORTH_THE_REST, Allocation, Allocator
from autotune.search.budget import CAUTION, Budget, expected_run_s, pair_s
from autotune.search.confirm import Candidate, affordable, better_than_today, pair_order, pairs_wanted
from autotune.search.execution import Execution, execute
from autotune.search.feasibility import Feasibility
from autotune.search.instruments import Instruments
from autotune.search.levels import Levels, expected_run_sd
from autotune.search.patience import longest_run_s, patience_s, patience_with_todays_caches_s, start_timeout_s
from autotune.search.propose import advised
from autotune.search.setup import Setup
from autotune.search.study import Study
from autotune.search.summary import speed_over, summarize
from autotune.space.space import Space, point_name
from autotune.trial.launch import Runner

WARM_UP_FROM_S = 120.0
"""Budgets below this go without the unmeasured first run that fills the machine's page cache."""

_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)
_TEN_MINUTES_S = 600.0
_REALIZED = 0.45  # of what the model promises, on average over the benchmark's trainings after 5 minutes
_FORESEEN_RUNS = 10
_FORETELLING_RUNS = 10  # before these the model promises whatever it was told to hope for
_PAIRS_WITH_TIME_TO_SPARE = 6  # four show a large gain, but not how large
_MOST_FAILURES = 5  # runs that all gave nothing, before the search gives up
_HOPELESS = 0.5  # of the fastest run's speed: no repeat will make up for that


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The first run of a kind that gave no numbers, and what it said last."""

    record: RunRecord
    stderr_tail: str
    folder: Path


class Tuner:
    """One search.

    Args:
        setup: What is tuned, where, and on what.
        study: The record; held by this search alone.
        runner: Makes the runs.
        budget: The wall.
        clock: Source of time.
        consumers: Told everything that happens.
        name: Name of the search.
        seed: Makes the choices of the sampler and the order of the confirmation repeatable.
        instruments: Makes those that watch one run; None for this machine's.
    """

    def __init__(
        self,
        setup: Setup,
        study: Study,
        runner: Runner,
        budget: Budget,
        clock: Clock,
        consumers: Iterable[Callable[[Event], None]],
        *,
        name: str,
        seed: int,
        instruments: Callable[[], Instruments] | None = None,
    ) -> None:
        self._setup = setup
        self._study = study
        self._runner = runner
        self._budget = budget
        self._clock = clock
        self._consumers = tuple(consumers)
        self._name = name
        self._instruments = instruments or (lambda: Instruments.of_machine(clock, setup.gpu_uuid))
        self._rng = random.Random(seed)
        self._today = setup.space.today
        self._seed = seed
        self._take_space(setup.space)
        self._runs: list[RunRecord] = []
        self._within_variances_s: list[float] = []
        self._saw_a_pass = False
        self._filling = False  # caches take too long to fill, and are filled in every run
        self._best_name: str | None = None
        self.failures: dict[Ending, Failed] = {}

    def run(self) -> SearchResult:
        """Searches until the budget is used or nothing left can pay, and confirms.

        Raises:
            RunError: The budget was too short for one run, or no run gave numbers.
            StudyError: The record cannot be written any more.
            KeyboardInterrupt: ^C; everything finished so far is in the record.
        """
        self._emit(
            SearchStarted(
                search=self._name,
                study=self._study.name,
                config=str(self._setup.config_path),
                today=self._today,
                points=self._space.size,
                runs_found=len(self._study.records()),
                budget_s=self._budget.budget_s,
                measures=self._setup.measures,
            )
        )
        if self._budget.budget_s >= WARM_UP_FROM_S:
            self._run(self._today, Purpose.TODAY, goal=_WARM_UP)
        self._measure_today()
        self._explore()
        self._confirm()

        result = summarize(
            self._study.records(), self._name, self._space, steadiness_weight=self._setup.steadiness_weight
        )
        elapsed_s = self._budget.elapsed_s()
        self._emit(SearchEnded(verdict=result.verdict if result else None, runs=len(self._runs), elapsed_s=elapsed_s))
        if result is None:
            endings = ", ".join(sorted({run.ending.value for run in self._runs}))
            raise RunError(
                f"none of {len(self._runs)} runs gave numbers ({endings})",
                where=str(self._setup.config_path),
                remedy="What the first of each kind said is printed above; mend that and run the same command again.",
            )
        return replace(result, gain_of_ten_minutes=self._gain_of_ten_minutes())

    def best_runs(self, points: int = 5) -> set[str]:
        """Names of the runs of the best points, whose folders are worth keeping."""
        names = {candidate.level.name for candidate in self._better()[:points]} | {point_name(self._today)}
        return {self._run_name(run.number) for run in self._runs if run.point in names}

    @property
    def outcomes(self) -> Counter[str]:
        """How often each ending came in this search."""
        return Counter(run.ending.value for run in self._runs)

    def _emit(self, event: Event) -> None:
        for consumer in self._consumers:
            consumer(event)

    def _run_name(self, number: int) -> str:
        return f"{self._name}-{number:03d}"

    # The phases

    def _measure_today(self) -> None:
        """Measures the unit of everything.

        Raises:
            RunError: The budget ended before that.
        """
        give_up_s = self._clock.now_s() + patience_with_todays_caches_s(self._budget.budget_s)
        record = self._run(
            self._today, Purpose.TODAY, give_up_s=give_up_s if self._space.settles(self._today) else None
        )
        if record.validity is Validity.COLD:
            self._leave_caches_alone()
            record = self._run(self._today, Purpose.TODAY)
        if not record.comparable and record.ending is not Ending.KILLED_BY_BUDGET:
            record = self._run(self._today, Purpose.TODAY)  # it may have been an accident, and all depends on it
        if record.ending is Ending.KILLED_BY_BUDGET and record.validity is Validity.UNMEASURED:
            raise RunError(
                f"no training step was seen within the budget of {format_duration(self._budget.budget_s)}",
                where=str(self._setup.config_path),
                remedy="Give it more time if training takes longer than that to start. If the trainer does not report\n"
                "its steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
            )
        if record.ending is Ending.KILLED_BY_BUDGET and not record.comparable:
            raise RunError(
                f"the budget of {format_duration(self._budget.budget_s)} is too short for one run of today's config",
                where=str(self._setup.config_path),
                remedy="Give it at least ten times what one run takes, from its start to a few seconds of training.",
            )

    def _explore(self) -> None:
        """Proposes, runs, judges and learns, as long as that pays and fits in front of the confirmation."""
        self._emit(PhaseChanged(phase="exploring", why="looking for better values"))
        while True:
            left_s = self._budget.left_s() - self._reserved_s()
            choice = self._next_run()
            if self._nothing_works():
                why = f"{_MOST_FAILURES} runs in a row gave no numbers"
            elif choice is None:
                why = "every combination was tried, or takes too long for the time that is left"
            elif choice.gain * self._runs_in(left_s) < WORTH_THE_REST:
                why = "nothing left to try promises a gain"
            elif expected_run_s(self._runs, point_name(choice.values) if choice.is_repeat else None) > left_s:
                why = "the rest of the budget is for the confirmation"
            else:
                now_s, settles = self._clock.now_s(), self._space.settles(choice.values)
                patient_s = patience_s(self._runs, settles=settles, left_s=left_s, budget_s=self._budget.budget_s)
                purpose = Purpose.REPEAT if choice.is_repeat else Purpose.EXPLORE
                record = self._run(choice.values, purpose, ends_s=now_s + left_s, give_up_s=now_s + patient_s)
                if record.validity is Validity.COLD and not self._has_settled():
                    self._leave_caches_alone()
                continue
            self._emit(PhaseChanged(phase="ending" if self._nothing_works() else "confirming", why=why))
            return

    def _next_run(self) -> Allocation | None:
        feasible = self._feasible()
        advice = advised(
            self._space,
            self._levels,
            self._data_wait(),
            has_gpu=bool(self._setup.machine.gpus),
            short_passes=self._saw_a_pass,
        )
        return self._allocator.next_run(
            point_name(self._today),
            next((values for values in advice if feasible.why_not(values) is None), None),
            feasible.why_not,
            self._longest_run_s(),
        )

    def _runs_in(self, left_s: float) -> float:
        """How many runs would fit, as far as so many can be looked ahead."""
        return min(_FORESEEN_RUNS, max(0.0, left_s) / expected_run_s(self._runs))

    def _longest_run_s(self) -> float:
        """How long a run of a new point may be expected to take."""
        if self._reserved_s() == 0.0:
            return math.inf  # nothing to confirm yet: what is learned of another point is there for the next search
        return longest_run_s(self._runs, point_name(self._today), self._budget.left_s())

    def _has_settled(self) -> bool:
        """Whether some run's caches were filled in time, so that another's were too large or too slow."""
        return any(run.comparable and self._space.settles(run.values) for run in self._runs)

    def _feasible(self) -> Feasibility:
        margin = self._setup.limits.memory_margin
        return Feasibility(self._space, self._levels, self._setup.machine, memory_margin=margin)

    def _gain_of_ten_minutes(self) -> float | None:
        """How much faster the best point would get on average, e.g. 0.02; None before the model can tell."""
        if sum(run.comparable is not None for run in self._runs) < _FORETELLING_RUNS:
            return None
        gain = self._allocator.promise(
            point_name(self._today),
            max(1, int(_TEN_MINUTES_S / expected_run_s(self._runs))),
            self._feasible().why_not,
        )
        return math.expm1(_REALIZED * max(0.0, gain))

    def _take_space(self, space: Space) -> None:
        """Searches this space from now on, with all that the record knows of it."""
        self._space = space
        self._levels = Levels(space, self._setup.steadiness_weight, self._study.records())
        self._allocator = Allocator(space, self._seed)
        self._allocator.learn(self._levels, expected_run_sd(self._levels))

    def _leave_caches_alone(self) -> None:
        self._filling = self._space.settles(self._today)
        self._take_space(self._space.without_settling())
        why = "caches stay as they are: one pass over the data, which fills them, does not fit into a run"
        if self._filling:
            why += "; they are compared without the time they wait for data"
        self._emit(PhaseChanged(phase="exploring", why=why))

    def _confirm(self) -> None:
        """Measures the best point against today's config again, in turn, in runs that did not choose it."""
        today, left_s = point_name(self._today), self._budget.left_s()
        better = self._better()
        if not better:
            return
        finalist = affordable(better, today, self._runs, left_s=left_s)
        if finalist is None:
            needed_s = LEAST_PAIRS * min(pair_s(self._runs, today, candidate.level.name) for candidate in better)
            left = format_duration(max(0.0, left_s))
            why = f"to confirm a point takes {format_duration(needed_s)}, and {left} is left"
            self._emit(PhaseChanged(phase="ending", why=why))
            return
        length_s = pair_s(self._runs, today, finalist.level.name)
        wanted = pairs_wanted(finalist, expected_run_sd(self._levels), length_s, budget_s=self._budget.budget_s)
        fitting = int(left_s / length_s)
        pairs = min(max(wanted, _PAIRS_WITH_TIME_TO_SPARE), fitting - fitting % 2)
        for pair, is_today in pair_order(pairs, self._rng):
            values = self._today if is_today else finalist.level.values
            record = self._run(values, Purpose.CONFIRM, pair=pair)
            if not record.comparable and record.ending is not Ending.KILLED_BY_BUDGET:
                record = self._run(values, Purpose.CONFIRM, pair=pair)  # it may have been an accident
            if not record.comparable:
                return

    # One run

    def _run(
        self,
        values: Values,
        purpose: Purpose,
        *,
        pair: int | None = None,
        ends_s: float | None = None,
        give_up_s: float | None = None,
        goal: WindowGoal | None = None,
    ) -> RunRecord:
        """One trial: plan, start, watch, stop, measure, write down.

        Args:
            values: The point.
            purpose: Why it is run.
            pair: Of a confirming run, its pair.
            ends_s: When it is killed if it still runs; None for the wall.
            give_up_s: When it is stopped with whatever it has shown; None for never.
            goal: How long to measure; None for what the study's noise makes worthwhile. With a goal of its own a
                run warms the machine up and is not compared with others.
        """
        number, started_s = self._study.next_number, self._clock.now_s()
        changes, limit_s = self._space.changes(values), self._setup.limits.start_timeout_s
        self._emit(RunStarted(number=number, purpose=purpose, changes=changes, pair=pair))
        done = execute(
            self._setup,
            self._runner,
            self._instruments(),
            self._clock,
            values,
            run=self._run_name(number),
            goal=goal or self._goal(),
            settles=goal is None and self._space.settles(values),
            filling=self._filling,
            deadline_s=min(self._budget.wall_s, ends_s or math.inf),
            give_up_s=give_up_s or math.inf,
            start_timeout_s=start_timeout_s(self._runs, limit_s) if purpose is Purpose.EXPLORE else None,
            hopeless_below=0.0 if self._filling or purpose is not Purpose.EXPLORE else _HOPELESS * self._fastest(),
            progress=lambda steps: self._emit(
                RunProgress(number=number, elapsed_s=self._clock.now_s() - started_s, steps=steps)
            ),
        )
        record = self._study.append(
            RunRecord(
                number=number,
                search=self._name,
                point=point_name(values),
                values=values,
                purpose=purpose,
                pair=pair,
                ending=done.ending,
                validity=Validity.COLD if goal is not None and done.measurement else done.validity,
                ended_utc=self._clock.utc().isoformat(timespec="seconds"),
                duration_s=done.duration_s,
                measurement=done.measurement,
                detail=done.detail,
                conditions=self._setup.conditions,
            )
        )
        done.close(record, keep_outputs=self._setup.settings.section.keep_outputs)
        self._learn(record, done)
        speedup = self._speedup([record])
        self._emit(RunEnded(run=record, changes=changes, speedup=speedup, stderr_tail=done.stderr_tail))
        if purpose is not Purpose.CONFIRM:
            self._emit_incumbent()
        return record

    def _goal(self) -> WindowGoal:
        """How long the next run measures: the best use of time at the noise that this study has shown."""
        limits = self._setup.limits
        starts_s = [run.measurement.first_step_s for run in self._runs if run.measurement]
        target_s = limits.min_s
        if starts_s and self._within_variances_s:
            target_s = optimal_window_s(
                median(starts_s),
                median(self._within_variances_s),
                expected_run_sd(self._levels) ** 2,
                min_s=limits.min_s,
                max_s=limits.max_s,
            )
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s)

    # What is known

    def _learn(self, record: RunRecord, done: Execution) -> None:
        self._runs.append(record)
        self._saw_a_pass = self._saw_a_pass or done.saw_a_pass
        self._levels.add(record)
        self._allocator.learn(self._levels, expected_run_sd(self._levels))
        if done.window is not None and record.comparable:
            self._within_variances_s.append(done.window.within_variance_s())
        if record.ending in (Ending.STOPPED, Ending.KILLED_BY_BUDGET) or record.validity is Validity.COLD:
            return  # our doing, no failure of the trainer's
        if not record.comparable and record.ending not in self.failures:
            self.failures[record.ending] = Failed(record=record, stderr_tail=done.stderr_tail, folder=done.folder.path)

    def _speedup(self, runs: Sequence[RunRecord]) -> float | None:
        """Speed of some runs over today's in this search; None if either gave no comparable numbers."""
        baseline = [run for run in self._runs if run.point == point_name(self._today) and run.comparable]
        good = [run for run in runs if run.comparable]
        return speed_over(good, baseline) if good and baseline else None

    def _data_wait(self) -> float | None:
        """Share of the time that today's training loop waits for data; None if it does not say."""
        waits = [
            run.comparable.data_wait_fraction
            for run in self._runs
            if run.point == point_name(self._today) and run.comparable
        ]
        known = [wait for wait in waits if wait is not None]
        return median(known) if known else None

    def _better(self) -> list[Candidate]:
        """The points that are believed to be better than today's, best first."""
        return better_than_today(self._levels, self._allocator.believed(), point_name(self._today))

    def _reserved_s(self) -> float:
        """Time that is not for exploring: what it takes to confirm the point that is best now."""
        better = self._better()
        if not better or better[0].gain <= math.log(LEAST_SCORE_GAIN):
            return 0.0  # nothing to confirm yet
        length_s = pair_s(self._runs, point_name(self._today), better[0].level.name)
        sd = expected_run_sd(self._levels)
        return CAUTION * length_s * pairs_wanted(better[0], sd, length_s, budget_s=self._budget.budget_s)

    def _fastest(self) -> float:
        """Samples per second of this search's fastest run; 0 before there is one."""
        return max((run.comparable.samples_per_s for run in self._runs if run.comparable), default=0.0)

    def _emit_incumbent(self) -> None:
        better = self._better()
        if not better or better[0].level.name == self._best_name:
            return
        best = better[0].level
        speedup = self._speedup([run for run in self._runs if run.point == best.name])
        if speedup is not None:
            self._best_name = best.name
            self._emit(IncumbentChanged(values=best.values, changes=self._space.changes(best.values), speedup=speedup))

    def _nothing_works(self) -> bool:
        return len(self._runs) >= _MOST_FAILURES and not any(run.comparable for run in self._runs)
