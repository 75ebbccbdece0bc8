"""One search, from its first process to its answer. Read `Tuner.run` first, then `Tuner._run`: one trial."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.clock import Clock
from autotune.durations import format_duration
from autotune.errors import AutotuneError, TrialError
from autotune.events import (
    Event,
    IncumbentChanged,
    PhaseChanged,
    Remark,
    SearchEnded,
    SearchStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
)
from autotune.limits import expected
from autotune.measure.window import WindowGoal
from autotune.process.launch import Runner
from autotune.records import DISTURBED, Ending, Purpose, TrialRecord, Validity, Values
from autotune.results import SearchResult
from autotune.sampler.acquisition import WORTH_THE_REST
from autotune.score import LEAST_PAIRS, LEAST_SCORE_GAIN
from autotune.search.confirm import affordable, pair_order, pairs_wanted
from autotune.search.disturbances import Disturbances
from autotune.search.findings import Findings
from autotune.search.gpus import request_for
from autotune.search.problem import Problem
from autotune.search.schedule import (
    CAUTION,
    Budget,
    baseline_cache_time_limit_s,
    confirming_window_s,
    expected_trial_s,
    least_confirmation_s,
    longest_trial_s,
    pair_s,
    start_timeout_s,
    time_limit_s,
    verdict_s,
)
from autotune.search.state import SearchState
from autotune.study.pooled_gpus import pooled_gpus
from autotune.study.record import Study
from autotune.study.summary import summarize
from autotune.trial.execution import Execution, TrialTools, execute
from autotune.trial.instruments import Instruments
from autotune.trial.stop_rule import TrialPolicy

WARM_UP_FROM_S = 120.0
"""Budgets below this go without the unmeasured first trial that fills the machine's page cache."""

_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)
_TEN_MINUTES_S = 600.0
_REALIZED = 0.45  # of what the model promises, on average over the benchmark's trainings after 5 minutes
_FORESEEN_TRIALS = 10
_FORETELLING_TRIALS = 10  # before these the model promises whatever it was told to hope for
_PAIRS_WITH_TIME_TO_SPARE = 6  # four show a large gain, but not how large
_MOST_FAILURES = 5  # trials that all gave nothing, before the search gives up
_ALIKE_FOR_ALL = frozenset({Ending.NEVER_STARTED, Ending.OBSERVER_MISSING})  # no other values would make steps seen
_GPU_COMES_BACK_S = 10.0  # between trials, while a GPU that was lost does not answer
_OUTRUNS = 2.0  # times as fast as any trial before, and memory is said to have run out: work was left out
_CLEARING_S = 0.5  # beyond the wall, for deleting what the last trial wrote
_HOPELESS = 0.5  # of the speed that is asked for: no repeat will make up for that


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The first trial of a kind that gave no numbers, and what it said last."""

    record: TrialRecord
    stderr_tail: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial that the search has decided on.

    Attributes:
        values: The point.
        purpose: Why it is run.
        pair: Of a confirming trial, its pair.
        ends_s: When it is killed if it still runs, before the wall; on the clock's monotonic time.
        patient_s: After how many seconds it is stopped with whatever it has shown.
        goal: How long to measure; None for what the study's noise makes worthwhile.
        warms_up: Whether it only warms the machine up, and is not compared with others.
    """

    values: Values
    purpose: Purpose
    pair: int | None = None
    ends_s: float = math.inf
    patient_s: float = math.inf
    goal: WindowGoal | None = None
    warms_up: bool = False


class Tuner:
    """One search.

    Args:
        problem: What is tuned, where, and on what.
        study: The record; held by this search alone.
        runner: Makes the trials.
        budget: The wall.
        clock: Source of time.
        consumers: Told everything that happens.
        name: Name of the search.
        seed: Makes the choices of the sampler and the order of the confirmation repeatable.
        instruments: Makes those that watch one trial; None for this machine's, GPUs left out.

    Attributes:
        failures: The first trial of each kind that gave no numbers by a fault of the trainer's.
        ended_by: What ended the search before its time; None if nothing did.
    """

    def __init__(
        self,
        problem: Problem,
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
        self._problem = problem
        self._study = study
        self._runner = runner
        self._budget = budget
        self._clock = clock
        self._consumers = tuple(consumers)
        self._name = name
        self._instruments = instruments or (lambda: Instruments.of_machine(clock, None))
        self._rng = random.Random(seed)
        self._today = problem.space.today
        self._baseline = PlannedTrial(values=self._today, purpose=Purpose.TODAY)
        self._findings = Findings(problem, clock, cwd=Path.cwd())
        self._known = SearchState(problem, study, self._findings, seed=seed)
        self._filling = False  # caches take too long to fill, and are filled in every trial
        self._filled_files = False  # the latest trial has left a cache for the next ones
        self._disturbances = Disturbances()
        self._gpu_lost: str | None = None  # why, once it has not come back
        self._best_name: str | None = None
        self.failures: dict[Ending, Failed] = {}
        self.ended_by: AutotuneError | None = None

    def run(self) -> SearchResult:
        """Searches until the budget is used or nothing left can pay, and confirms.

        What ends it before that is in `ended_by`; the answer is made of what was measured until then.

        Raises:
            AutotuneError: No trial gave numbers to answer with; most often a `TrialError`.
            KeyboardInterrupt: ^C; everything finished so far is in the record.
        """
        self._emit(
            SearchStarted(
                search=self._name,
                study=self._study.name,
                config=str(self._problem.config_path),
                today=self._today,
                points=self._known.space.size,
                trials_found=len(self._study.records()),
                budget_s=self._budget.budget_s,
                measures=self._problem.measures,
            )
        )
        try:
            if self._budget.budget_s >= WARM_UP_FROM_S:
                self._run(replace(self._baseline, goal=_WARM_UP, warms_up=True))
            self._measure_baseline()
            self._explore()
            self._confirm()
        except BrokenPipeError:
            raise  # nobody listens any more
        except (AutotuneError, OSError, MemoryError, RuntimeError) as error:
            self.ended_by = expected(error)
            if self.ended_by is None:
                raise

        result = summarize(
            self._study.records(),
            self._name,
            self._known.space,
            objective=self._problem.objective,
            why_no_gpu=self._problem.why_no_gpu,
        )
        elapsed_s = self._budget.elapsed_s()
        self._emit(
            SearchEnded(verdict=result.verdict if result else None, trials=len(self._known.trials), elapsed_s=elapsed_s)
        )
        if result is None and self.ended_by:
            raise self.ended_by
        if result is None:
            endings = ", ".join(sorted({trial.ending.value for trial in self._known.trials}))
            raise TrialError(
                f"none of {len(self._known.trials)} trials gave numbers ({endings})",
                where=str(self._problem.config_path),
                remedy="What the first of each kind said is printed above; mend that and run the same command again.",
            )
        trouble = self._gpu_lost or (self.ended_by and self.ended_by.message)
        lost = (f"The search could not go on: {trouble}.",) if trouble else ()
        cautions = (*result.cautions, *lost, *self._disturbances.cautions(self._known.trials), *self._findings.cautions)
        return replace(result, gain_of_ten_minutes=self._gain_of_ten_minutes(), cautions=cautions)

    def best_trials(self, points: int = 5) -> set[str]:
        """Names of the trials of the best points, whose folders are worth keeping."""
        names = {candidate.observation.name for candidate in self._known.better()[:points]} | {self._known.today}
        return {self._trial_name(trial.number) for trial in self._known.trials if trial.point in names}

    @property
    def outcomes(self) -> Counter[str]:
        """Number of trials of this search by ending."""
        return Counter(trial.ending.value for trial in self._known.trials)

    def _emit(self, event: Event) -> None:
        for consumer in self._consumers:
            consumer(event)
        while self._findings.remarks:
            self._emit(Remark(text=self._findings.remarks.popleft()))

    def _trial_name(self, number: int) -> str:
        return f"{self._name}-{number:03d}"

    # The phases

    def _measure_baseline(self) -> None:
        """Measures the unit of everything.

        Raises:
            TrialError: The budget ended before that, or what is searched for cannot be measured.
        """
        patient_s = baseline_cache_time_limit_s(self._budget.budget_s)
        fills_caches = self._known.space.settles(self._today)
        record = self._measure(replace(self._baseline, patient_s=patient_s) if fills_caches else self._baseline)
        if record.validity is Validity.COLD and self._filled_files:
            record = self._measure(self._baseline)  # with what the first one left behind
        elif record.validity is Validity.COLD:
            self._leave_caches_alone()
            record = self._measure(self._baseline)
        if self._may_have_been_an_accident(record):
            record = self._measure(self._baseline)  # all depends on it
        if record.comparable and not self._problem.objective.is_told_by(record.comparable):
            raise TrialError(
                "objective: utilization, but the GPU's utilization was not measured while today's config ran",
                where=str(self._problem.config_path),
                remedy="See whether the trainer uses the GPU, and what `autotune monitor` says of it; or search for\n"
                "effective_utilization or throughput instead.",
            )
        if record.ending is Ending.KILLED_BY_BUDGET and record.validity is Validity.UNMEASURED:
            raise TrialError(
                f"no training step was seen within the budget of {format_duration(self._budget.budget_s)}",
                where=str(self._problem.config_path),
                remedy="Give it more time if training takes longer than that to start. If the trainer does not report\n"
                "its steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
            )
        if record.ending is Ending.KILLED_BY_BUDGET and not record.comparable:
            raise TrialError(
                f"the budget of {format_duration(self._budget.budget_s)} is too short for one trial of today's config",
                where=str(self._problem.config_path),
                remedy="Give it at least ten times what one trial takes, from its start to a few seconds of training.",
            )

    def _explore(self) -> None:
        """Proposes, runs, judges and learns, as long as that pays and fits in front of the confirmation."""
        why, needed_s = "looking for better values", least_confirmation_s(self._known.trials, self._known.today)
        if needed_s > self._budget.left_s():
            left = format_duration(max(0.0, self._budget.left_s()))
            why += (
                f"; none can be confirmed in this search: {left} is left, {format_duration(needed_s)} needed at least"
            )
        self._emit(PhaseChanged(phase="exploring", why=why))
        while True:
            left_s = self._budget.left_s() - self._reserved_s()
            choice = self._known.next_trial(self._longest_trial_s())
            if self._gpu_lost:
                why = self._gpu_lost
            elif self._nothing_works():
                why = f"{len(self._known.trials)} trials in a row gave no numbers"
            elif choice is None:
                why = "every combination was tried, or takes too long for the time that is left"
            elif (
                expected_trial_s(
                    self._known.trials, self._known.space.name(choice.values) if choice.is_repeat else None
                )
                > left_s
            ):
                why = "the rest of the budget is for the confirmation"
            elif choice.gain * self._trials_in(left_s) < WORTH_THE_REST:
                why = "nothing left to try promises a gain"
            else:
                now_s, settles = self._clock.now_s(), self._known.space.settles(choice.values)
                patient_s = time_limit_s(
                    self._known.trials, settles=settles, left_s=left_s, budget_s=self._budget.budget_s
                )
                purpose = Purpose.REPEAT if choice.is_repeat else Purpose.EXPLORE
                record = self._measure(
                    PlannedTrial(values=choice.values, purpose=purpose, ends_s=now_s + left_s, patient_s=patient_s)
                )
                if record.validity is Validity.COLD and not self._known.has_settled():
                    self._leave_caches_alone()
                continue
            ends = self._gpu_lost or self._nothing_works() or not self._known.better()
            self._emit(PhaseChanged(phase="ending" if ends else "confirming", why=why))
            return

    def _trials_in(self, left_s: float) -> float:
        """Return the number of trials that would fit, as far as so many can be looked ahead."""
        return min(_FORESEEN_TRIALS, max(0.0, left_s) / expected_trial_s(self._known.trials))

    def _longest_trial_s(self) -> float:
        """Return the longest expected length of a trial of a new point."""
        if self._reserved_s() == 0.0:
            return math.inf  # nothing to confirm yet: what is learned of another point is there for the next search
        return longest_trial_s(self._known.trials, self._known.today, self._budget.left_s())

    def _reserved_s(self) -> float:
        """Time that is not for exploring: what it takes to confirm the point that is best now."""
        better = self._known.better()
        if not better or better[0].gain <= math.log(LEAST_SCORE_GAIN):
            return 0.0  # nothing to confirm yet
        if affordable(better, self._known.today, self._known.trials, left_s=self._budget.left_s()) is None:
            return 0.0  # no time to confirm anything: what is learned instead is there for the next search
        length_s = pair_s(self._known.trials, self._known.today, better[0].observation.name)
        pairs = pairs_wanted(better[0], self._known.sd, length_s, budget_s=self._budget.budget_s)
        longer_s = self._longer_for_a_verdict_s(length_s / 2, 2 * pairs, math.inf)
        return CAUTION * (length_s + 2 * longer_s) * pairs

    def _nothing_works(self) -> bool:
        is_tried = len(self._known.trials) >= _MOST_FAILURES
        return self._never_trains() or (is_tried and not any(trial.comparable for trial in self._known.trials))

    def _never_trains(self) -> bool:
        return len(self._known.trials) >= 2 and all(trial.ending in _ALIKE_FOR_ALL for trial in self._known.trials)

    def _gain_of_ten_minutes(self) -> float | None:
        """Predict the average gain of the best point, e.g. 0.02; None before the model can tell."""
        telling = [trial for trial in self._known.trials if trial.comparable and trial.purpose is not Purpose.CONFIRM]
        if len(telling) < _FORETELLING_TRIALS:
            return None
        gain = self._known.promise(max(1, int(_TEN_MINUTES_S / expected_trial_s(self._known.trials))))
        return math.expm1(_REALIZED * max(0.0, gain))

    def _leave_caches_alone(self) -> None:
        self._filling = self._known.space.settles(self._today)
        self._known.search_in(self._known.space.without_settling())
        why = "caches stay as they are: one pass over the data, which fills them, does not fit into a trial"
        if self._filling:
            why += "; they are compared without the time they wait for data"
        self._emit(PhaseChanged(phase="exploring", why=why))

    def _confirm(self) -> None:
        """Measures the best point against today's config again, in turn, in trials that did not choose it."""
        today, left_s = self._known.today, self._budget.left_s()
        better = self._known.better()
        if not better or self._gpu_lost:
            return
        finalist = affordable(better, today, self._known.trials, left_s=left_s)
        if finalist is None:
            needed_s = LEAST_PAIRS * min(
                pair_s(self._known.trials, today, candidate.observation.name) for candidate in better
            )
            left = format_duration(max(0.0, left_s))
            why = f"to confirm a point takes {format_duration(needed_s)}, and {left} is left"
            self._emit(PhaseChanged(phase="ending", why=why))
            return
        length_s = pair_s(self._known.trials, today, finalist.observation.name)
        wanted = pairs_wanted(finalist, self._known.sd, length_s, budget_s=self._budget.budget_s)
        fitting = int(left_s / length_s)
        pairs = min(max(wanted, _PAIRS_WITH_TIME_TO_SPARE), fitting - fitting % 2)
        longer_s = self._longer_for_a_verdict_s(length_s / 2, 2 * pairs, left_s)
        goal = replace(self._known.goal(), target_s=self._known.goal().length_s + longer_s) if longer_s else None
        for done, (pair, is_today) in enumerate(pair_order(pairs, self._rng), start=1):
            values = self._today if is_today else finalist.observation.values
            others_s = (2 * pairs - done) * (length_s / 2 + longer_s)
            trial = PlannedTrial(values=values, purpose=Purpose.CONFIRM, pair=pair, goal=goal)
            record = self._measure(trial, kept_s=others_s)
            if self._may_have_been_an_accident(record):
                record = self._measure(trial, kept_s=others_s)
            if self._gpu_lost:
                self._emit(PhaseChanged(phase="ending", why=self._gpu_lost))
            if not record.comparable:
                return

    def _longer_for_a_verdict_s(self, trial_s: float, trials: int, left_s: float) -> float:
        """Return the extra time of confirming trials that shows what a measured GPU does.

        Args:
            trial_s: How long a trial takes that measures as usual.
            trials: How many there will be.
            left_s: The time for them.
        """
        usual_s = self._known.goal().length_s
        today = [trial.comparable for trial in self._known.good_baseline_trials() if trial.comparable]
        wished_s = verdict_s(pooled_gpus(today, None))
        return (
            confirming_window_s(usual_s, wished_s, trial_s, trials, left_s=left_s, budget_s=self._budget.budget_s)
            - usual_s
        )

    def _may_have_been_an_accident(self, record: TrialRecord) -> bool:
        if record.comparable or record.ending is Ending.KILLED_BY_BUDGET or self._gpu_lost:
            return False
        return not self._never_trains()

    # One trial

    def _measure(self, trial: PlannedTrial, *, kept_s: float = 0.0) -> TrialRecord:
        """Make a trial, and again, a few times at most, as long as something else is in the way.

        Args:
            trial: The trial.
            kept_s: Time in seconds that has to be left for other trials.
        """
        tries = 0
        while True:
            tries += 1
            left_s = min(self._budget.wall_s, trial.ends_s) - self._clock.now_s() - kept_s
            usual_s = expected_trial_s(self._known.trials, self._problem.space.name(trial.values))
            length_s = max(usual_s, trial.goal.length_s if trial.goal else 0.0)
            may_repeat = left_s >= 2 * length_s and self._disturbances.may_repeat(tries)
            record = self._run(trial, counts_anyway=not may_repeat)
            lost = record.ending is Ending.GPU_LOST
            if not may_repeat or not (lost or record.validity in DISTURBED):
                break
            self._disturbances.repeated()
            if lost:
                self._clock.wait(_GPU_COMES_BACK_S)
        self._gpu_lost = f"the GPU does not come back ({record.detail})" if lost else None
        return record

    def _run(self, trial: PlannedTrial, *, counts_anyway: bool = False) -> TrialRecord:
        """Make one trial: start, watch, stop, measure, write down.

        Args:
            trial: The trial.
            counts_anyway: Whether it is compared with others also if it was disturbed.
        """
        number, started_s = self._study.next_number, self._clock.now_s()
        changes = self._known.space.changes(trial.values)
        self._emit(TrialStarted(number=number, purpose=trial.purpose, changes=changes, pair=trial.pair))
        done = execute(
            self._problem.trainer,
            request_for(self._problem, trial.values, name=self._trial_name(number)),
            self._policy(trial, started_s),
            TrialTools(runner=self._runner, instruments=self._instruments(), clock=self._clock),
            progress=lambda steps: self._emit(
                TrialProgress(number=number, elapsed_s=self._clock.now_s() - started_s, steps=steps)
            ),
        )
        self._filled_files = self._findings.look_around(number)
        validity = self._validity(trial, done, counts_anyway=counts_anyway)
        record = self._study.append(
            TrialRecord(
                number=number,
                search=self._name,
                point=self._problem.space.name(trial.values),
                values=trial.values,
                purpose=trial.purpose,
                pair=trial.pair,
                ending=done.ending,
                validity=validity,
                ended_utc=self._clock.utc().isoformat(timespec="seconds"),
                duration_s=done.duration_s,
                measurement=done.measurement,
                detail="" if trial.warms_up and done.measurement else done.detail,  # it need not show anything
                conditions={**self._problem.conditions, **done.conditions},
            )
        )
        over_s = self._budget.wall_s + _CLEARING_S
        done.close(
            record,
            keep_outputs=self._problem.settings.section.keep_outputs,
            is_over=lambda: self._clock.now_s() > over_s,
        )
        self._known.learn(record, done)
        self._note_failure(record, done)
        speedup = self._known.speedup([record])
        self._emit(TrialEnded(trial=record, changes=changes, speedup=speedup, stderr_tail=done.stderr_tail))
        if trial.purpose is not Purpose.CONFIRM:
            self._emit_incumbent()
        return record

    def _policy(self, trial: PlannedTrial, started_s: float) -> TrialPolicy:
        """Return when a trial is measured, given up and ended, as far as it is known when it starts."""
        explores = trial.purpose is Purpose.EXPLORE
        limit_s = self._problem.limits.start_timeout_s
        return TrialPolicy(
            goal=trial.goal or self._known.goal(),
            settles=not trial.warms_up and self._known.space.settles(trial.values),
            filling=self._filling,
            deadline_s=min(self._budget.wall_s, trial.ends_s),
            give_up_s=started_s + trial.patient_s,
            start_timeout_s=start_timeout_s(self._known.trials, limit_s) if explores else None,
            hopeless_below=_HOPELESS * self._known.pace() if explores and not self._filling else 0.0,
            baseline_losses=None if trial.purpose is Purpose.TODAY else self._findings.baseline_losses,
            outruns_from=_OUTRUNS * self._known.pace(),
        )

    def _validity(self, trial: PlannedTrial, done: Execution, *, counts_anyway: bool) -> Validity:
        """Return what the numbers of a trial are good for, seen from the search; noted if they count in spite of it."""
        is_cold = done.measurement and (trial.warms_up or self._filled_files)
        validity = Validity.COLD if is_cold else done.validity
        if validity in DISTURBED and counts_anyway:
            self._disturbances.accepted(validity, done.detail)
            return Validity.GOOD
        return validity

    def _note_failure(self, record: TrialRecord, done: Execution) -> None:
        """Keeps the first trial of each kind that gave no numbers by a fault of the trainer's."""
        ended_early = record.ending in (Ending.STOPPED, Ending.KILLED_BY_BUDGET)
        if record.comparable or ended_early or record.validity in (Validity.COLD, *DISTURBED):
            return
        if record.ending not in self.failures:
            self.failures[record.ending] = Failed(record=record, stderr_tail=done.stderr_tail, folder=done.folder.path)

    def _emit_incumbent(self) -> None:
        better = self._known.better()
        if not better or better[0].observation.name == self._best_name:
            return
        best = better[0].observation
        speedup = self._known.speedup([trial for trial in self._known.trials if trial.point == best.name])
        # The model may still believe in a point whose own trials were slow: no news for the user.
        if speedup is not None and (speedup > 1.0 or self._problem.objective.by_utilization):
            self._best_name = best.name
            self._emit(
                IncumbentChanged(values=best.values, changes=self._known.space.changes(best.values), speedup=speedup)
            )
