"""Execution of a search's trials, one at a time; `TrialMaker.make_once` is the core."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from autotune.errors import CodeChanged, Terminated
from autotune.events import TrialEnded, TrialProgress, TrialStarted
from autotune.measure.window import WindowGoal
from autotune.records import (
    DISTURBED,
    NOT_COMPARED,
    Conditions,
    DataFinding,
    Ending,
    Purpose,
    RaceLeg,
    TrialRecord,
    Validation,
    Validity,
)
from autotune.sampler.config_sampler import sampler_name
from autotune.search.gpus import complete
from autotune.search.parts import SearchParts
from autotune.search.schedule import (
    SLOWER_THAN_USUAL,
    expected_measuring_s,
    expected_trial_s,
    never_trains,
    start_timeout_s,
)
from autotune.search.state import SearchState
from autotune.space.knob import Label
from autotune.study.data_effects import label_found
from autotune.trial.execution import Execution, TrialSpec, execute
from autotune.trial.stop_rule import StopLimits

MOST_REPEATS = 2  # of one disturbed trial
MOST_IN_A_SEARCH = 10


CUT_SHORT = frozenset({Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED, Ending.GPU_LOST})
"""Endings that say nothing about the config."""


class PointTaken(Exception):  # noqa: N818 - not an error: another point is tried
    """Another machine has just started a trial of this new point."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """First failed trial of a kind, with the end of its output."""

    record: TrialRecord
    stderr_tail: str
    folder: Path


Judge = Callable[[Execution], Validation | RaceLeg | None]
"""Returns the result of a trial for its record."""


class TrialMaker:
    """Runner of the trials of one search.

    Attributes:
        failures: First trial of each kind that failed by a fault of the trainer.
        filled_files: Whether the latest trial has left a cache for the next ones.
        gpu_lost: Why no further trial can run, once a lost GPU has not come back.
    """

    def __init__(self, parts: SearchParts, state: SearchState) -> None:
        self._parts = parts
        self._events = parts.events
        self._state = state
        self._repeats = 0
        self._disturbed: list[tuple[Validity, str]] = []
        self.latest: Execution | None = None
        self.failures: dict[Ending, Failed] = {}
        self.filled_files = False
        self.gpu_lost: str | None = None

    @property
    def cautions(self) -> tuple[str, ...]:
        counting = sum(trial.comparable is not None for trial in self._state.trials.own)
        return tuple(
            f"During {len(details)} of the {counting} trials that count, {what}, even in repeats; the effect on their "
            f"numbers is unknown (latest: {details[-1]})."
            for how, what in (
                (Validity.CONTAMINATED, "other processes used the GPU"),
                (Validity.THROTTLED, "the GPU's clocks were throttled"),
            )
            if (details := [detail for kind, detail in self._disturbed if kind is how])
        )

    def make(self, trial: TrialSpec, *, kept_s: float = 0.0) -> TrialRecord:
        """Run a trial, and repeat it a few times while it is disturbed."""
        for tries in count(1):
            # A trial that is still disturbed then counts: on a shared machine more repeats would not help.
            may_repeat = self._two_fit(trial, kept_s) and tries <= MOST_REPEATS and self._repeats < MOST_IN_A_SEARCH
            record = self.make_once(trial, counts_anyway=not may_repeat)
            lost = record.ending is Ending.GPU_LOST
            if not may_repeat or not (lost or record.validity in DISTURBED):
                break
            self._repeats += 1
            if lost:
                self._parts.clock.wait(10.0)  # for a lost GPU to come back
        self.gpu_lost = f"the GPU does not come back ({record.detail})" if lost else None
        return record

    def should_retry(self, record: TrialRecord) -> bool:
        """Return whether to retry a failed trial."""
        is_final = record.comparable or record.ending in (Ending.KILLED_BY_BUDGET, Ending.UNCOUNTED)
        return not (is_final or self.gpu_lost or never_trains(self._state.trials.own))

    def make_once(
        self,
        trial: TrialSpec,
        *,
        counts_anyway: bool = False,
        judge: Judge = lambda _done: None,
        fill_outputs: Callable[[Path], None] = lambda _outputs: None,
    ) -> TrialRecord:
        """Start, watch, stop, measure and record one trial.

        Args:
            counts_anyway: Whether it counts even if disturbed.

        Raises:
            Terminated: The supervising daemon is gone.
            PointTaken: Another machine has just started a trial of the same new point.
            CodeChanged: The trainer's code has changed since the previous trials.
        """
        lifeline = self._parts.lifeline
        if lifeline is not None and lifeline.is_cut:
            raise Terminated
        study = self._parts.study
        changes = {**self._state.model.space.changes(trial.values), **trial.tried_keys}
        until_s = min(self._parts.budget.wall_s, trial.ends_s)
        with self._parts.neighbours.turn(self._parts.clock, alone=trial.alone, until_s=until_s):
            claim = study.begin(
                trial.values,
                self._parts.problem.space.choices,
                search=self._parts.search,
                purpose=trial.purpose.value,
                sampler=sampler_name(self._parts.options.sampler),
                machine=self._parts.problem.machine.name,
            )
            if trial.purpose is Purpose.EXPLORE and study.members.others() and study.is_taken(claim):
                study.abandon(claim)
                raise PointTaken
            try:
                self._events.publish(
                    TrialStarted(number=claim.number, purpose=trial.purpose, changes=changes, pair=trial.pair)
                )
                code, start = self._parts.problem.code.now.digests(), self._parts.clock.utc()
                done = self._execute(trial, claim.number, self._parts.clock.now_s(), fill_outputs)
            except BaseException:
                study.abandon(claim)
                raise
        self.latest = done
        self.filled_files = self._state.findings.check_side_effects(claim.number)
        validity = self._validity(trial, done, counts_anyway=counts_anyway)
        loaded = [path for event in done.events if event.kind == "files" for path in event.paths]
        # files known at the start keep their digests from then
        code = {**self._parts.problem.code.now.digests(loaded, before_s=start.timestamp()), **code}
        record = self._record(trial, claim.number, done, validity, code, judge(done))
        speeds = done.window.speeds(8) if done.window and done.measurement else ()
        record = study.finish(claim, record, score=self._state.trials.score(record), speeds=speeds)
        # Deleting outputs may take half a second beyond the deadline, or beyond a trial that ignored SIGTERM.
        over_s = max(self._parts.budget.wall_s, self._parts.clock.now_s()) + 0.5
        keeps = self._parts.problem.settings.section.keep_outputs
        done.close(record, keep_outputs=keeps, is_over=lambda: self._parts.clock.now_s() > over_s)
        self._require_same_code(record)
        self._state.trials.own.append(record)
        self._note_failure(record, done)
        speedup = self._state.trials.speedup([record])
        ended = TrialEnded(trial=record, changes=changes, speedup=speedup, stderr_tail=done.stderr_tail)
        try:
            self._events.publish(ended)
        finally:  # also if the user's files cannot be restored, which ends the search
            self._state.learn(record, done)
        explores = trial.purpose not in (Purpose.CONFIRM, *NOT_COMPARED)
        for target in self._state.targets if explores else ():
            incumbent, whole = target.update(), self._state.targets[0]
            if incumbent is not None and (target is whole or target.best != whole.best):
                self._events.publish(incumbent)
        return record

    def _require_same_code(self, record: TrialRecord) -> None:
        first = next(iter(self._state.trials.own), record)
        if not record.shares_code_with(first):
            changed = sorted(name for name, digest in record.code.items() if first.code.get(name, digest) != digest)
            raise CodeChanged(
                f"the trainer's code was changed during the search: {', '.join(changed)}; trials from before and after "
                "cannot be compared",
                where=str(self._parts.problem.config_path),
                remedy="Run the same command again to measure the current code.",
            )

    def _two_fit(self, trial: TrialSpec, kept_s: float) -> bool:
        left_s = min(self._parts.budget.wall_s, trial.ends_s) - self._parts.clock.now_s() - kept_s
        usual_s = expected_trial_s(self._state.trials.own, self._parts.problem.space.name(trial.values))
        return left_s >= 2 * max(usual_s, trial.goal.length_s if trial.goal else 0.0)

    def _execute(
        self, trial: TrialSpec, number: int, started_s: float, fill_outputs: Callable[[Path], None]
    ) -> Execution:
        parts, instruments = self._parts, self._parts.new_instruments()

        def progress(steps: int) -> None:
            now_s = parts.clock.now_s()
            utilization = instruments.recent_utilization(now_s, started_s=started_s)
            self._events.publish(
                TrialProgress(number=number, elapsed_s=now_s - started_s, steps=steps, utilization=utilization)
            )

        return execute(
            parts.problem.trainer,
            complete(parts.problem, trial, name=parts.trial_name(number), limits=self._limits(trial, started_s)),
            runner=parts.runner,
            instruments=instruments,
            clock=parts.clock,
            progress=progress,
            fill_outputs=fill_outputs,
        )

    def _limits(self, trial: TrialSpec, started_s: float) -> StopLimits:
        state = self._state
        explores, is_baseline = trial.purpose is Purpose.EXPLORE, trial.purpose is Purpose.BASELINE
        limit_s = self._parts.problem.limits.start_timeout_s
        return StopLimits(
            goal=self._goal(trial),
            settles=not trial.warms_up and state.model.space.settles(trial.values),
            filling=state.model.scope.filling,
            deadline_s=min(self._parts.budget.wall_s, trial.ends_s),
            give_up_s=started_s + trial.limit_s,
            measures_s=SLOWER_THAN_USUAL * expected_measuring_s(state.trials.own) if explores else 0.0,
            start_timeout_s=start_timeout_s(state.trials.own, limit_s, trial.waits_s) if explores else None,
            must_last=not is_baseline and trial.purpose not in NOT_COMPARED and self._baseline_survives(),
            max_s=self._parts.problem.limits.max_s,
            # No repeat compensates for half the speed of the best that it may replace.
            hopeless_below=0.5 * self._rival_pace(trial) if explores and not state.model.scope.filling else 0.0,
            # Longer trainings outlast the baseline's losses; they are compared at the end.
            baseline_losses=None if is_baseline or trial.purpose in NOT_COMPARED else state.findings.baseline_losses,
            # Not for the baseline, whose losses are the reference, nor for phases, which repeat a few batches.
            nan_counts=not (is_baseline or trial.phases or state.findings.baseline_has_no_loss),
            # So fast after an out-of-memory message, it has skipped work.
            outruns_from=2.0 * state.trials.pace(),
            validate_s=trial.validate_s,
            rounds=trial.phases.rounds if trial.phases else None,
            trains_s=trial.trains_s,
        )

    def _baseline_survives(self) -> bool:
        """Return whether baseline trials were measured, and none hung or crashed."""
        trials = self._state.trials
        baseline = [trial for trial in trials.own if trial.point == trials.baseline_point]
        failed = any(trial.ending in (Ending.CRASHED, Ending.HUNG) for trial in baseline)
        return not failed and any(trial.comparable for trial in baseline)

    def _rival_pace(self, trial: TrialSpec) -> float:
        """Return the speed of the fastest trial in the smallest target with a point."""
        parts = [target.part for target in self._state.targets]
        return self._state.trials.pace(next((part for part in parts[::-1] if part.contains(trial.values)), None))

    def _goal(self, trial: TrialSpec) -> WindowGoal:
        goal = trial.goal or self._state.windows.usual()
        if trial.warms_up or trial.phases:
            return goal
        return self._state.windows.in_steps(goal, self._parts.problem.space.name(trial.values))

    def _validity(self, trial: TrialSpec, done: Execution, *, counts_anyway: bool) -> Validity:
        """Return the validity of a trial in this search."""
        is_cold = done.measurement and (trial.warms_up or self.filled_files)
        validity = Validity.COLD if is_cold else done.validity
        if validity in DISTURBED and counts_anyway:
            self._disturbed.append((validity, done.detail))
            return Validity.GOOD
        return validity

    def _record(
        self,
        trial: TrialSpec,
        number: int,
        done: Execution,
        validity: Validity,
        code: Mapping[str, str],
        shown: Validation | RaceLeg | None,
    ) -> TrialRecord:
        problem = self._parts.problem
        data = self._state.data.finding(trial, problem.space, done.data, done.losses)
        return TrialRecord(
            number=number,
            search=self._parts.search,
            point=problem.space.name(trial.values),
            values=trial.values,
            purpose=trial.purpose,
            pair=trial.pair,
            ending=done.ending,
            validity=validity,
            ended_utc=self._parts.clock.utc().isoformat(timespec="seconds"),
            duration_s=done.duration_s,
            measurement=done.measurement,
            detail="" if trial.warms_up and done.measurement else done.detail,
            conditions=self._conditions(trial, done, data),
            data=data,
            validation=shown if isinstance(shown, Validation) else None,
            race=shown if isinstance(shown, RaceLeg) else None,
            code=code,
        )

    def _conditions(self, trial: TrialSpec, done: Execution, data: DataFinding | None) -> Conditions:
        problem, state = self._parts.problem, self._state
        bounds = done.bounds
        free_data, free_step = (bounds.free_data, bounds.free_step) if bounds else (None, None)
        return replace(
            problem.conditions,
            gpu=done.gpu,
            validate_s=self._parts.options.validate_s,
            document=problem.place.training,
            changes=tuple(sorted(self._labels(trial, data) - {Label.SAME_TRAINING})),
            allowed_changes=tuple(sorted(problem.allowed)),
            outside_answer=state.answer.outside,
            left_out_answer=None if state.answer.outside else state.answer.left_out,
            until_step=state.windows.until_step,
            pairs_planned=trial.planned_pairs,
            claims_sd=state.claims_sd or None if trial.purpose is Purpose.CONFIRM else None,
            alone=self._parts.neighbours.waited,
            unheeded=state.findings.unread_knobs(trial.values, done.folder, problem.space) if done.measurement else (),
            no_loss=True if done.measurement and done.losses.first is None else None,
            free_data_ratio=free_data.ratio if free_data else None,
            free_data_ratio_high=free_data.high if free_data else None,
            free_step_ratio=free_step.ratio if free_step else None,
            free_step_ratio_high=free_step.high if free_step else None,
        )

    def _labels(self, trial: TrialSpec, data: DataFinding | None) -> set[Label]:
        labels = set(self._state.labelled(self._parts.problem.space).labels_of(trial.values))
        found = label_found(data.effect) if data else None
        return labels | {found} if found else labels

    def _note_failure(self, record: TrialRecord, done: Execution) -> None:
        ended_early = record.ending in (Ending.STOPPED, Ending.KILLED_BY_BUDGET)
        if record.comparable or ended_early or record.validity in (Validity.COLD, *DISTURBED):
            return
        if record.ending not in self.failures:
            self.failures[record.ending] = Failed(record=record, stderr_tail=done.stderr_tail, folder=done.folder.path)


class SearchStage:
    """Stage of a search, or a part of one, that runs trials."""

    def __init__(self, parts: SearchParts, state: SearchState, trials: TrialMaker) -> None:
        self._parts = parts
        self._events = parts.events
        self._state = state
        self._trials = trials
