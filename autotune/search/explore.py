"""First stages of a search: today's config is measured, then points are proposed, run, judged and learned from."""

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
from autotune.search.finalists import Finalists
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import Outcome, SearchParts
from autotune.search.preflight import try_relative_outputs
from autotune.search.problem import Problem
from autotune.search.schedule import (
    EndOfExploring,
    ExploringEnd,
    baseline_cache_time_limit_s,
    design_points,
    expected_trial_s,
    least_confirmation_s,
    longest_trial_s,
    promised_by_the_rest,
    time_limit_s,
    why_exploring_ends,
)
from autotune.search.state import SearchState
from autotune.search.trial_maker import PointTaken, SearchStage, TrialMaker
from autotune.trial.execution import TrialSpec
from autotune.trial.outcome import EXPLANATIONS, failure_text

_EXPLORES = 0.45
"""Share of the budget that exploring has before time is kept for a close and small answer."""

WARM_UP_FROM_S = 300.0
"""Budgets below this go without the unmeasured first trial that fills the machine's page cache."""

_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)


class Explorer(SearchStage):
    """Explorer of the space of a search: measures today's config, then makes the trials that promise most.

    Attributes:
        ended: Why exploring ended last; None before that.
        has_resumed: Whether exploring resumed after it had ended early, for a point that was not confirmed.
        promised: Gain in ln score that exploring on promised when its latest trial was chosen; None before the first.
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
        self._today = TrialSpec(values=parts.problem.space.baseline, purpose=Purpose.BASELINE)
        self.ended: EndOfExploring | None = None
        self.has_resumed = False
        self.promised: float | None = None

    def measure_baseline(self) -> Outcome:
        """Measure today's config, and what depends on it alone: the current answer, irrelevant knobs.

        Raises:
            TrialError: The budget ended before that, or what is searched for cannot be measured.
        """
        if self._parts.budget.budget_s >= WARM_UP_FROM_S:
            self._trials.make_once(replace(self._today, goal=_WARM_UP, warms_up=True))
        record = self._measured()
        if record.ending is Ending.CRASHED and record.validity is Validity.UNMEASURED:
            self._require_that_paths_are_taken(record)
        self._others.require_that_today_works(record)
        budget_s = self._parts.budget.budget_s
        require_baseline(record, self._parts.problem, budget_s=budget_s, earlier=self._state.trials.own)
        if longer := self._state.windows.why_longer():
            self._events.remark(longer)
        self._try_standing_answer()
        scope, machine = self._state.model.scope, self._parts.machine
        if alone := scope.leave_alone(self._state.trials.baseline_point, machine):
            self._events.change_phase("exploring", alone)
        return Outcome.DONE

    def _measured(self) -> TrialRecord:
        limit_s = math.inf
        if self._state.model.space.settles(self._today.values):
            limit_s = baseline_cache_time_limit_s(self._parts.budget.budget_s)
        record = self._trials.make(replace(self._today, limit_s=limit_s, goal=self._state.windows.first()))
        if record.validity is Validity.COLD:
            if not self._trials.filled_files:  # else the next one has what this one left behind
                self.leave_caches_alone()
            record = self._trials.make(self._today)
        if self._trials.may_have_been_an_accident(record):
            record = self._trials.make(self._today)  # all depends on it
        return record

    def _require_that_paths_are_taken(self, record: TrialRecord) -> None:
        """Raise an error if the trainer, which crashed before its first step, makes some with relative output paths."""
        parts = self._parts
        name = f"{parts.name}-outputs"
        tried = try_relative_outputs(parts.problem, parts.runner, parts.clock, name=name, wall_s=parts.budget.wall_s)
        if tried is not None:
            tried.trial.folder.delete()
            if tried.trial.steps:
                raise tried.error(record.detail, where=str(parts.problem.config_path))

    def _try_standing_answer(self) -> None:
        """Make a trial of the answer that the study stands by, as far as there is time: here it may fail."""
        values, left_s = self._state.answer.contender(), self._parts.budget.left_s()
        if values is not None and expected_trial_s(self._state.trials.own) < left_s:
            with suppress(PointTaken):
                self.try_point(Proposal(values=values, gain=0.0, is_repeat=True), left_s)

    def explore(self) -> Outcome:
        """Propose, run, judge and learn, as long as that pays and fits in front of what comes after it."""
        self._events.change_phase("exploring", self._why())
        self.ended = None
        for target in self._state.targets:
            target.ended = None
        while self.ended is None:
            self._others.take_in()
            if why := self._others.why_exploring_ends():
                self.ended = EndOfExploring(ExploringEnd.EXHAUSTED, why)
                break
            if self._others.is_time_for_baseline():
                self._others.require_that_today_works(self._trials.make(self._today))
            self.ended = self._try_next()
        return Outcome.DONE

    def _try_next(self) -> EndOfExploring | None:
        """Make the trial that promises most for what has had the least time; return why exploring ends, if it does."""
        state, budget = self._state, self._parts.budget
        target = min((one for one in state.targets if one.ended is None), key=lambda one: one.spent_s)
        part = target.part
        all_s = budget.left_s()
        kept_s, kept_closely_s = (self._finalists.kept_s(closely=closely) for closely in (False, True))
        explores_s = _EXPLORES * budget.budget_s - budget.elapsed_s()
        left_s = max(all_s - kept_closely_s, min(all_s - kept_s, explores_s))
        longest_s = math.inf
        if kept_s:
            longest_s = longest_trial_s(state.trials.own, state.trials.baseline_point, all_s, budget_s=budget.budget_s)
        longest_s = min(longest_s, all_s - kept_s)
        proposal = state.model.next_trial(part, longest_s, design_points(state.trials.own, part.size, left_s))
        if self._trials.gpu_lost:
            return EndOfExploring(ExploringEnd.EXHAUSTED, self._trials.gpu_lost)
        is_patient = self._parts.options.exhaust or self.has_resumed
        target.ended = why_exploring_ends(
            state.trials.own,
            proposal,
            part,
            tried_share=0.0 if self._parts.options.exhaust else state.model.tried_share(part),
            left_s=left_s,
            since_better=0 if is_patient else target.trials_since_better,
            gain_of=partial(state.model.gain_of, part=part),
        )
        if target.ended is None:
            assert proposal is not None, "without one, exploring ends"
            self.promised = promised_by_the_rest(state.trials.own, proposal, left_s)
            target.count()
            with suppress(PointTaken):  # then it is known by the time of the next proposal
                record = self.try_point(proposal, all_s - kept_s)
                for one in state.targets:  # of all points, one that leaves the training unchanged tells both
                    counts = one is target or (target is state.targets[0] and one.part.contains(record.values))
                    one.spent_s += record.duration_s if counts else 0.0
            return None
        is_over = target.ended.kind is ExploringEnd.TIME or all(one.ended for one in state.targets)
        return target.ended if is_over else None

    def try_point(self, proposal: Proposal, left_s: float) -> TrialRecord:
        """Make a proposed trial, in the time that is left for exploring."""
        model, values = self._state.model, proposal.values
        limit_s = time_limit_s(
            self._state.trials.own,
            settles=model.space.settles(values),
            left_s=left_s,
            budget_s=self._parts.budget.budget_s,
        )
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
            self.leave_caches_alone()
        return record

    def leave_caches_alone(self) -> None:
        """Keep the caches as they are from now on: they do not fill within a trial."""
        self._state.model.scope.leave_caches_alone()
        self._state.model.search_again()
        why = "caches stay as they are: one pass over the data, which fills them, does not fit into a trial"
        if self._state.model.scope.filling:
            why += "; they are compared without the time they wait for data"
        self._events.change_phase("exploring", why)

    def _why(self) -> str:
        why, left_s = "looking for better values", self._parts.budget.left_s()
        trials, baseline = self._state.trials.own, self._state.trials.baseline_point
        needed_s = least_confirmation_s(trials, baseline, budget_s=self._parts.budget.budget_s)
        if needed_s <= left_s:
            return why
        left = format_duration(max(0.0, left_s))
        return (
            f"{why}; none can be confirmed in this search: {left} is left, {format_duration(needed_s)} needed at least"
        )


def require_baseline(
    record: TrialRecord, problem: Problem, *, budget_s: float, earlier: Sequence[TrialRecord] = ()
) -> None:
    """Check that the search can go on after the trials of the baseline: without its numbers nothing can be compared.

    A baseline that failed by itself is let through: another point may do better, and the failure is told in the end.

    Args:
        earlier: Earlier trials of the search, whose numbers are not compared with others.

    Raises:
        TrialError: The budget ended before the baseline was measured, or what is searched for cannot be measured.
    """
    measured = record.comparable
    if measured and problem.objective.is_told_by(measured):
        return
    if record.ending is Ending.UNCOUNTED:
        why, remedy = f"today's config cannot be measured: {record.detail}", EXPLANATIONS[record.ending].remedy
    elif measured:
        why = "objective: utilization, but the GPU's utilization was not measured while today's config ran"
        remedy = (
            "See whether the trainer uses the GPU, and what `autotune monitor` says of it; or search for\n"
            "effective_utilization or throughput instead."
        )
    elif record.ending is Ending.KILLED_BY_BUDGET:
        why, remedy = _why_budget_was_short(record, earlier, format_duration(budget_s))
    else:
        return
    raise TrialError(why, where=str(problem.config_path), remedy=remedy)


def _why_budget_was_short(record: TrialRecord, earlier: Sequence[TrialRecord], budget: str) -> tuple[str, str]:
    """Return why the budget ended before the baseline was measured, and what helps."""
    if record.validity is not Validity.UNMEASURED:
        return (
            f"the budget of {budget} is too short for one trial of today's config",
            "Give it at least ten times what one trial takes, from its start to a few seconds of training.",
        )
    if any(trial.measurement for trial in earlier):
        was_cold = any(trial.validity is Validity.COLD for trial in earlier)
        return (
            f"the budget of {budget} ended before today's config could be measured again: its first trial "
            f"{'was taken to fill caches' if was_cold else 'ended early'}, and does not count",
            "Give it more time, or run the same command again.",
        )
    stopped_by_us = (Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED)
    if failed := [trial for trial in earlier if trial.ending not in stopped_by_us]:
        return (
            f"today's config gave no numbers: {failure_text(failed[0])}; the budget of {budget} ended while it was "
            "tried again",
            EXPLANATIONS[failed[0].ending].remedy,
        )
    return (
        f"no training step that counts was seen within the budget of {budget}"
        f"{f': {record.detail}' if record.detail else ''}",
        "Give it more time if training takes longer than that to start. If the trainer does not report\n"
        "its steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
    )
