"""First stages of a search: measure the baseline, then propose, run and judge points."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from autotune.clock import format_duration
from autotune.errors import TrialError
from autotune.measure.window import WindowGoal
from autotune.records import Ending, Purpose, TrialRecord, Validity
from autotune.sampler.acquisition import Proposal
from autotune.search import schedule
from autotune.search.finalists import Finalists
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import SearchParts
from autotune.search.preflight import try_relative_outputs
from autotune.search.problem import Problem
from autotune.search.schedule import EndOfExploring, ExploringEnd, Outcome
from autotune.search.state import SearchState
from autotune.search.trial_maker import PointTaken, SearchStage, TrialMaker
from autotune.trial.execution import TrialSpec
from autotune.trial.outcome import EXPLANATIONS, failure_text

_EXPLORES = 0.45
"""Share of the budget to explore before keeping time for a narrow, simplified answer."""

WARM_UP_FROM_S = 300.0
"""Shorter budgets skip the unmeasured first trial that fills the page cache."""

_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)


class Explorer(SearchStage):
    """Explorer of a search's space.

    Attributes:
        has_resumed: Whether it resumed because the point of an early end was not confirmed.
        promised: Predicted gain in ln score of further exploring.
    """

    def __init__(
        self,
        parts: SearchParts,
        state: SearchState,
        trials: TrialMaker,
        others: OtherMachines,
        finalists: Finalists,
    ) -> None:
        super().__init__(parts, state, trials)
        self._others = others
        self._finalists = finalists
        self._baseline = TrialSpec(values=parts.problem.space.baseline, purpose=Purpose.BASELINE)
        self.ended: EndOfExploring | None = None
        self.has_resumed = False
        self.promised: float | None = None

    def measure_baseline(self) -> Outcome:
        """Measure the baseline, retry the current answer and freeze irrelevant knobs.

        Raises:
            TrialError: The budget ended first, or the objective cannot be measured.
        """
        if self._parts.budget.budget_s >= WARM_UP_FROM_S:
            self._trials.make_once(replace(self._baseline, goal=_WARM_UP, warms_up=True))
        record = self._measured()
        if record.ending is Ending.CRASHED and record.validity is Validity.UNMEASURED:
            self._check_absolute_outputs(record)
        self._others.check_baseline(record)
        budget_s = self._parts.budget.budget_s
        require_baseline(record, self._parts.problem, budget_s=budget_s, earlier=self._state.trials.own)
        if longer := self._state.windows.why_longer():
            self._events.remark(longer)
        self._try_current_answer()
        scope, machine = self._state.model.scope, self._parts.machine
        if frozen := scope.freeze_knobs(self._state.trials.baseline_point, machine):
            self._events.change_phase("exploring", frozen)
        return Outcome.DONE

    def _measured(self) -> TrialRecord:
        limit_s = math.inf
        if self._state.model.space.settles(self._baseline.values):
            limit_s = schedule.baseline_cache_time_limit_s(self._parts.budget.budget_s)
        record = self._trials.make(replace(self._baseline, limit_s=limit_s, goal=self._state.windows.first()))
        if record.validity is Validity.COLD:
            if not self._trials.filled_files:  # else the next trial reads the cache that this one wrote
                self.freeze_caches()
            record = self._trials.make(self._baseline)
        if self._trials.should_retry(record):
            record = self._trials.make(self._baseline)
        return record

    def _check_absolute_outputs(self, record: TrialRecord) -> None:
        """Raise an error if a trainer that crashed at its start works with relative output paths."""
        parts = self._parts
        name = f"{parts.name}-outputs"
        tried = try_relative_outputs(parts.problem, parts.runner, parts.clock, name=name, wall_s=parts.budget.wall_s)
        if tried is not None:
            tried.trial.folder.delete()
            if tried.trial.steps:
                raise tried.error(record.detail, where=str(parts.problem.config_path))

    def _try_current_answer(self) -> None:
        """Try the study's current answer, which may fail on this machine."""
        values, left_s = self._state.answer.contender(), self._parts.budget.left_s()
        if values is not None and schedule.expected_trial_s(self._state.trials.own) < left_s:
            with suppress(PointTaken):
                self.try_point(Proposal(values=values, gain=0.0, is_repeat=True), left_s)

    def explore(self) -> Outcome:
        self._events.change_phase("exploring", self._phase_reason())
        self.ended = None
        for target in self._state.targets:
            target.ended = None
        while self.ended is None:
            self._others.update()
            if why := self._others.why_exploring_ends():
                self.ended = EndOfExploring(ExploringEnd.EXHAUSTED, why)
                break
            if self._others.is_time_for_baseline():
                self._others.check_baseline(self._trials.make(self._baseline))
            self.ended = self._try_next()
        return Outcome.DONE

    def _try_next(self) -> EndOfExploring | None:
        """Run the best trial for the target with the least time so far, or return why exploring ends."""
        state, budget = self._state, self._parts.budget
        target = min((one for one in state.targets if one.ended is None), key=lambda one: one.spent_s)
        part = target.part
        all_s = budget.left_s()
        kept_s, kept_closely_s = (self._finalists.kept_s(closely=closely) for closely in (False, True))
        explores_s = _EXPLORES * budget.budget_s - budget.elapsed_s()
        left_s = max(all_s - kept_closely_s, min(all_s - kept_s, explores_s))
        longest_s = all_s - kept_s
        if kept_s:
            baseline, budget_s = state.trials.baseline_point, budget.budget_s
            longest_s = min(longest_s, schedule.longest_trial_s(state.trials.own, baseline, all_s, budget_s=budget_s))
        proposal = state.model.next_trial(part, longest_s, schedule.design_points(state.trials.own, part.size, left_s))
        if self._trials.gpu_lost:
            return EndOfExploring(ExploringEnd.EXHAUSTED, self._trials.gpu_lost)
        is_patient = self._parts.options.exhaust or self.has_resumed
        target.ended = schedule.why_exploring_ends(
            state.trials.own,
            proposal,
            part,
            tried_share=state.model.tried_share(part),
            left_s=left_s,
            exhaustive=self._parts.options.exhaust,
            since_better=0 if is_patient else target.trials_since_better,
            gain_of=partial(state.model.gain_of, part=part),
        )
        if target.ended is None:
            assert proposal is not None, "without one, exploring ends"
            self.promised = schedule.gain_of_rest(state.trials.own, proposal, left_s)
            target.count()
            with suppress(PointTaken):  # the next proposal takes it into account
                record = self.try_point(proposal, all_s - kept_s)
                for one in state.targets:  # a point that leaves the training unchanged counts for both
                    counts = one is target or (target is state.targets[0] and one.part.contains(record.values))
                    one.spent_s += record.duration_s if counts else 0.0
            return None
        is_over = target.ended.kind is ExploringEnd.TIME or all(one.ended for one in state.targets)
        return target.ended if is_over else None

    def try_point(self, proposal: Proposal, left_s: float) -> TrialRecord:
        model, values = self._state.model, proposal.values
        settles, budget_s = model.space.settles(values), self._parts.budget.budget_s
        limit_s = schedule.time_limit_s(self._state.trials.own, settles=settles, left_s=left_s, budget_s=budget_s)
        waits_s = model.waits_s(values)
        record = self._trials.make(
            TrialSpec(
                values=values,
                purpose=Purpose.REPEAT if proposal.is_repeat else Purpose.EXPLORE,
                ends_s=self._parts.clock.now_s() + left_s,
                limit_s=max(limit_s, min(left_s, max(waits_s, model.starts.least_limit_s(model.space, values)))),
                waits_s=waits_s,
            )
        )
        if record.validity is Validity.COLD and not self._state.trials.has_settled(self._state.model.space):
            self.freeze_caches()
        return record

    def freeze_caches(self) -> None:
        """Stop varying caches, which do not fill within a trial."""
        self._state.model.scope.freeze_caches()
        self._state.model.update_scope()
        why = "caches are kept fixed: a pass over the data, which fills them, does not fit into a trial"
        if self._state.model.scope.filling:
            why += "; trials are compared without their time waiting for data"
        self._events.change_phase("exploring", why)

    def _phase_reason(self) -> str:
        why, left_s = "looking for better values", max(0.0, self._parts.budget.left_s())
        trials, baseline = self._state.trials.own, self._state.trials.baseline_point
        budget_s = self._parts.budget.budget_s
        certain_s = schedule.least_confirmation_s(trials, baseline, budget_s=budget_s)
        # with the starts of trials, and a trial of a better point
        usual_s = schedule.usual_confirmation_s(trials, baseline, budget_s=budget_s) + schedule.expected_trial_s(trials)
        has_explored = any(trial.purpose is Purpose.EXPLORE for trial in trials)
        if has_explored or usual_s <= left_s:
            return why
        problem = (
            "there may be no time to confirm one" if certain_s <= left_s else "none can be confirmed in this search"
        )
        enough_s = schedule.smallest_budget_s(trials)
        left, needed, enough = map(format_duration, (left_s, max(certain_s, usual_s), enough_s))
        return f"{why}; {problem}: {left} left, about {needed} needed; --budget {enough} is enough"


def require_baseline(
    record: TrialRecord, problem: Problem, *, budget_s: float, earlier: Sequence[TrialRecord] = ()
) -> None:
    """Check that the search can continue after the baseline trials; a failed baseline passes.

    Raises:
        TrialError: The budget ended first, or the objective cannot be measured.
    """
    measured = record.comparable
    if measured and problem.objective.can_score(measured):
        return
    if record.ending is Ending.UNCOUNTED:
        why, remedy = f"today's config cannot be measured: {record.detail}", EXPLANATIONS[record.ending].remedy
    elif measured:
        why = "objective: utilization, but no GPU utilization was measured while today's config ran"
        remedy = "Check with `autotune monitor` that the trainer uses the GPU, or set objective: throughput."
    elif record.ending is Ending.KILLED_BY_BUDGET:
        why, remedy = _why_budget_too_short(record, earlier, format_duration(budget_s))
    else:
        return
    raise TrialError(why, where=str(problem.config_path), remedy=remedy)


def _why_budget_too_short(record: TrialRecord, earlier: Sequence[TrialRecord], budget: str) -> tuple[str, str]:
    if record.validity is not Validity.UNMEASURED or any(trial.measurement for trial in earlier):
        return (
            f"the budget of {budget} is too short to measure today's config",
            "Give it at least ten times the length of a trial: its start and a few seconds of training.",
        )
    stopped_by_us = (Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED)
    if failed := [trial for trial in earlier if trial.ending not in stopped_by_us]:
        return (
            f"today's config failed: {failure_text(failed[0])}; the budget of {budget} ended during the retry",
            EXPLANATIONS[failed[0].ending].remedy,
        )
    return (
        f"no valid training step was seen within the budget of {budget}{f': {record.detail}' if record.detail else ''}",
        "Give it more time if training starts later than that. If the trainer does not report its\n"
        "steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
    )
