"""Exploring: points are proposed, run, judged and learned from, as long as that pays and there is time."""

import math
from contextlib import suppress

from autotune.clock import format_duration
from autotune.records import Purpose, Validity
from autotune.sampler.acquisition import Proposal
from autotune.search.finalists import Finalists
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import Outcome, SearchParts
from autotune.search.schedule import (
    EndOfExploring,
    ExploringEnd,
    design_points,
    least_confirmation_s,
    longest_trial_s,
    promised_by_the_rest,
    time_limit_s,
    why_exploring_ends,
)
from autotune.search.state import SearchState
from autotune.search.trial_maker import PointTaken, SearchStage, TrialMaker
from autotune.trial.execution import TrialSpec

_EXPLORES = 0.45
"""Share of the budget that exploring has before time is kept for a close and small answer."""


class Explorer(SearchStage):
    """Explorer of the space of a search.

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
        self.ended: EndOfExploring | None = None
        self.has_resumed = False
        self.promised: float | None = None

    def explore(self) -> Outcome:
        """Propose, run, judge and learn, as long as that pays and fits in front of what comes after it."""
        self._events.change_phase("exploring", self._why())
        self.ended = None
        while self.ended is None:
            self._others.take_in()
            if why := self._others.why_exploring_ends():
                self.ended = EndOfExploring(ExploringEnd.EXHAUSTED, why)
                break
            if self._others.is_time_for_baseline():
                today = TrialSpec(values=self._parts.problem.space.baseline, purpose=Purpose.BASELINE)
                self._others.require_that_today_works(self._trials.make(today))
            self.ended = self._try_next()
        return Outcome.DONE

    def _try_next(self) -> EndOfExploring | None:
        """Make the trial that promises most; return why exploring ends, where none is made."""
        state, budget = self._state, self._parts.budget
        all_s = budget.left_s()
        kept_s, kept_closely_s = (self._finalists.kept_s(closely=closely) for closely in (False, True))
        explores_s = _EXPLORES * budget.budget_s - budget.elapsed_s()
        left_s = max(all_s - kept_closely_s, min(all_s - kept_s, explores_s))
        longest_s = math.inf
        if kept_s:
            longest_s = longest_trial_s(state.trials.own, state.trials.baseline_point, all_s, budget_s=budget.budget_s)
        proposal = state.model.next_trial(longest_s, design_points(state.trials.own, state.model.space.size, left_s))
        if self._trials.gpu_lost:
            return EndOfExploring(ExploringEnd.EXHAUSTED, self._trials.gpu_lost)
        is_patient = self._parts.options.exhaust or self.has_resumed
        ended = why_exploring_ends(
            state.trials.own,
            proposal,
            state.model.space,
            tried_share=0.0 if self._parts.options.exhaust else state.model.tried_share,
            left_s=left_s,
            since_better=0 if is_patient else state.trials_since_better,
            gain_of=state.model.gain_of,
        )
        if ended is None and proposal is not None:
            self.promised = promised_by_the_rest(state.trials.own, proposal, left_s)
            with suppress(PointTaken):  # then it is known by the time of the next proposal
                self.try_point(proposal, all_s - kept_s)
        return ended

    def try_point(self, proposal: Proposal, left_s: float) -> None:
        """Make a proposed trial, in the time that is left for exploring."""
        record = self._trials.make(
            TrialSpec(
                values=proposal.values,
                purpose=Purpose.REPEAT if proposal.is_repeat else Purpose.EXPLORE,
                ends_s=self._parts.clock.now_s() + left_s,
                limit_s=time_limit_s(
                    self._state.trials.own,
                    settles=self._state.model.space.settles(proposal.values),
                    left_s=left_s,
                    budget_s=self._parts.budget.budget_s,
                ),
            )
        )
        if record.validity is Validity.COLD and not self._state.trials.has_settled(self._state.model.space):
            self.leave_caches_alone()

    def leave_caches_alone(self) -> None:
        """Keep the caches as they are from now on: they do not fill within a trial."""
        self._state.model.leave_caches_alone()
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
