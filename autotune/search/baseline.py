"""First stage of a search: today's config is measured, which everything else is compared with."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from autotune.clock import format_duration
from autotune.errors import TrialError
from autotune.measure.window import WindowGoal
from autotune.records import Ending, Purpose, TrialRecord, Validity
from autotune.sampler.acquisition import Proposal
from autotune.search.explore import Explorer
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import Outcome, SearchParts
from autotune.search.preflight import try_relative_outputs
from autotune.search.problem import Problem
from autotune.search.schedule import baseline_cache_time_limit_s, expected_trial_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import PointTaken, SearchStage, TrialMaker
from autotune.trial.execution import TrialSpec
from autotune.trial.explanations import EXPLANATIONS, failure_text

WARM_UP_FROM_S = 120.0
"""Budgets below this go without the unmeasured first trial that fills the machine's page cache."""

_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)


class Baseline(SearchStage):
    """Measures today's config, and the study's current answer where there is one."""

    def __init__(
        self,
        parts: SearchParts,
        state: SearchState,
        trials: TrialMaker,
        others: OtherMachines,
        explorer: Explorer,
    ) -> None:
        super().__init__(parts, state, trials)
        self._others = others
        self._explorer = explorer
        self._trial = TrialSpec(values=parts.problem.space.baseline, purpose=Purpose.BASELINE)

    def measure(self) -> Outcome:
        """Measure today's config, and what depends on it alone: the current answer, irrelevant knobs.

        Raises:
            TrialError: The budget ended before that, or what is searched for cannot be measured.
        """
        if self._parts.budget.budget_s >= WARM_UP_FROM_S:
            self._trials.make_once(replace(self._trial, goal=_WARM_UP, warms_up=True))
        record = self._measured()
        if record.ending is Ending.CRASHED and record.validity is Validity.UNMEASURED:
            self._require_that_paths_are_taken(record)
        self._others.require_that_today_works(record)
        budget_s = self._parts.budget.budget_s
        require_baseline(record, self._parts.problem, budget_s=budget_s, earlier=self._state.trials.own)
        if longer := self._state.windows.why_longer():
            self._events.remark(longer)
        self._try_standing_answer()
        if alone := self._state.model.leave_alone(self._state.trials.baseline_point):
            self._events.change_phase("exploring", alone)
        return Outcome.DONE

    def _measured(self) -> TrialRecord:
        limit_s = math.inf
        if self._state.model.space.settles(self._trial.values):
            limit_s = baseline_cache_time_limit_s(self._parts.budget.budget_s)
        record = self._trials.make(replace(self._trial, limit_s=limit_s, goal=self._state.windows.first()))
        if record.validity is Validity.COLD:
            if not self._trials.filled_files:  # else the next one has what this one left behind
                self._explorer.leave_caches_alone()
            record = self._trials.make(self._trial)
        if self._trials.may_have_been_an_accident(record):
            record = self._trials.make(self._trial)  # all depends on it
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
                self._explorer.try_point(Proposal(values=values, gain=0.0, is_repeat=True), left_s)


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
