"""Finalists of a search: the best point, simplified, and measured again beside today's config in interleaved pairs."""

import random
from collections.abc import Sequence
from dataclasses import replace

from autotune.clock import format_duration
from autotune.measure.score import LEAST_PAIRS, Judgement
from autotune.records import Purpose, TrialRecord, Values
from autotune.search.confirm import (
    Arm,
    Candidate,
    Confirmation,
    ConfirmationBasis,
    ConfirmationPlan,
    Decision,
    least_needed_s,
    plan_confirmation,
    reserved_s,
)
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import Outcome, SearchParts
from autotune.search.race import Racer
from autotune.search.schedule import CAUTION, EndOfExploring, ExploringEnd, expected_trial_s
from autotune.search.state import SearchState
from autotune.search.take_back import TakeBack
from autotune.search.trial_maker import SearchStage, TrialMaker
from autotune.search.validation import Validator
from autotune.study.answer import judged_finalists
from autotune.trial.execution import TrialSpec

_FOR_PAIRS = 0.55  # of what is left then, at most, where taking back needs time, too

_OUTCOMES = {
    Decision.COMPLETE: Outcome.MEASURED,
    Decision.FAR_SLOWER: Outcome.FAR_SLOWER,
    Decision.INCOMPARABLE: Outcome.ENDED,
}


class Finalists(SearchStage):
    """Finalists of a search.

    Args:
        validator: Tells what time the validation takes, which is kept for it.
        racer: Likewise for the race.

    Attributes:
        lacks_time: Whether there was no time for a confirmation.
    """

    def __init__(
        self,
        parts: SearchParts,
        state: SearchState,
        trials: TrialMaker,
        others: OtherMachines,
        validator: Validator,
        racer: Racer,
    ) -> None:
        super().__init__(parts, state, trials)
        self._others = others
        self._validator = validator
        self._racer = racer
        self._take_back = TakeBack(parts, state, trials)
        self._rng = random.Random(parts.options.seed)
        self._chosen: Sequence[Candidate] = ()
        self._seen = 0  # trials, when there was nothing to confirm
        self.lacks_time = False

    def kept_s(self, *, closely: bool) -> float:
        """Return the time that is not for exploring; 0 while there is nothing to confirm, or no time to.

        Args:
            closely: Whether to keep what makes the answer close and small, too.
        """
        if not self._parts.confirms:
            return 0.0
        better, left_s = self._state.model.better(), self._parts.budget.left_s()
        kept_s = reserved_s(better, self.basis(), left_s=left_s, closely=closely)
        if not kept_s:
            return 0.0
        kept_s += self._state.windows.finalist_look_s + self._afterwards_s()
        return kept_s + self._take_back.needed_s() if closely else kept_s

    def basis(self) -> ConfirmationBasis:
        """Return the facts that the size of a confirmation follows from."""
        return self._state.answer.confirmation_basis()

    def _afterwards_s(self) -> float:
        """Return the time that is kept for what comes after the confirmation of the point that is best now."""
        better = self._state.model.better()
        return self._validator.needed_s + self._racer.needed_s(better[0].observation.values if better else None)

    # Which

    def simplify(self) -> Outcome:
        """Choose what is confirmed: the points that are believed to be better, the first with its few changes."""
        better: Sequence[Candidate] = self._state.model.better()
        if better:
            spare_s = self._parts.budget.left_s() - least_needed_s(better, self.basis())
            self._others.wait_for_their_trials(min(expected_trial_s(self._state.trials.own), spare_s))
            better = self._state.model.better()
        if not self._others.why_exploring_ends():
            better = self._smallest(better)
        self._chosen = self._others.to_be_confirmed(better or self._state.answer.contender_alone())
        return Outcome.DONE

    def _smallest(self, better: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the points that are believed to be better, the first without the changes that are not worth it."""
        kept_s, problem = self.kept_s(closely=False), self._parts.problem
        if not kept_s or problem.objective.by_utilization or self._state.answer.is_standing(better[0]):
            return better
        close_s = self.kept_s(closely=True) - self._take_back.needed_s()
        kept_s = max(kept_s, min(close_s, _FOR_PAIRS * self._parts.budget.left_s()))
        name = problem.space.name(self._take_back.simplified(better[0].observation.values, kept_s=kept_s))
        return sorted(self._state.model.better(), key=lambda candidate: candidate.observation.name != name)

    # The confirmation

    def confirm(self, ended: EndOfExploring) -> Outcome:
        """Measure the best point against today's config again, in turn, in trials that did not choose it.

        Args:
            ended: Why exploring has ended.
        """
        left_s = self._parts.budget.left_s() - self._state.windows.finalist_look_s
        is_short = ended.kind is ExploringEnd.TIME
        if not self._chosen or self._trials.gpu_lost:
            has_more, self._seen = len(self._state.trials.own) > self._seen, len(self._state.trials.own)
            if has_more and is_short and not self._trials.gpu_lost:
                return Outcome.TIME_FREED  # the time that was kept for it is there again
            self._events.change_phase("ending", "no time is left for another trial" if is_short else ended.why)
            return Outcome.ENDED
        plan = self._plan(left_s)
        if plan is None:
            needed = format_duration(least_needed_s(self._chosen, self.basis()) + self._validator.needed_s)
            left = format_duration(max(0.0, left_s))
            another = "another point" if self._validator.has_broken else "a point"
            why = "the budget is used up" if is_short else ended.why
            self._events.change_phase("ending", f"{why}; to confirm {another} takes {needed}, and {left} is left")
            self.lacks_time = True
            return Outcome.ENDED
        self._events.change_phase("confirming", ended.why)
        with self._others.confirming(plan.candidate.observation.name):
            return self._make_pairs(plan)

    def _plan(self, left_s: float) -> ConfirmationPlan | None:
        basis, afterwards_s = self.basis(), self._afterwards_s()
        plan = plan_confirmation(self._chosen, basis, left_s=left_s - afterwards_s, may_be_cut=not afterwards_s)
        if plan is None and not self._validator.has_broken:
            plan = plan_confirmation(self._chosen, basis, left_s=left_s)
        return plan

    def _make_pairs(self, plan: ConfirmationPlan) -> Outcome:
        finalist, contender = plan.candidate.observation.values, self._state.answer.contender()
        third = contender
        if contender is None or self._state.answer.is_standing(plan.candidate):
            third = self._state.answer.same_training(plan.candidate)
        points = [self._parts.problem.space.baseline, finalist, *([] if third is None else [third])]
        plan = replace(plan, arms=len(points))
        first_pair = 1 + max((trial.pair for trial in self._made_here() if trial.pair is not None), default=-1)
        confirmation = Confirmation(plan, self._rng)
        while (turn := confirmation.next()) is not None:
            trial = self._trial_of(turn, points[turn.arm], plan, first_pair)
            record = self._trials.make(trial, kept_s=plan.rest_s(turn.done))
            if self._trials.may_have_been_an_accident(record):
                record = self._trials.make(trial, kept_s=plan.rest_s(turn.done))
            if self._trials.gpu_lost:
                self._events.change_phase("ending", self._trials.gpu_lost)
            confirmation.add(record)
            if confirmation.is_look:
                confirmation.look(self._judgements(plan))
            if confirmation.decision is Decision.OPEN and self._is_time_to_go_on(turn.done, plan):
                break
        return _OUTCOMES.get(confirmation.decision, Outcome.MEASURED)

    def _trial_of(self, turn: Arm, values: Values, plan: ConfirmationPlan, first_pair: int) -> TrialSpec:
        usual = self._state.windows.usual()
        look_s = self._state.windows.finalist_look_s if turn.is_first else 0.0
        window_s = max(usual.length_s + plan.longer_s, look_s)
        # stalls that come up are waited for, as far as the other trials leave time
        trials_left = plan.arms * plan.pairs - turn.done + 1
        fair_s = self._parts.budget.left_s() / trials_left - plan.usual_trial_s + usual.length_s
        return TrialSpec(
            values=values,
            purpose=Purpose.CONFIRM,
            pair=first_pair + turn.pair,
            alone=self._others.take_turns,
            planned_pairs=plan.pairs if plan.sequential else None,
            goal=replace(usual, target_s=window_s, most_s=min(usual.most_s, max(window_s, fair_s))),
        )

    def _made_here(self) -> list[TrialRecord]:
        member = self._parts.study.members.own
        if member is None:
            return self._state.trials.own
        records = self._parts.study.records()
        return [trial for trial in records if trial.search == member.search and trial.machine == member.machine]

    def _judgements(self, plan: ConfirmationPlan) -> list[Judgement | None]:
        """Judge the pairs so far, as the answer will be: by the record alone."""
        records, search, problem = self._state.trials.of_study(), self._parts.search, self._parts.problem
        standing = self._state.answer.standing
        asked = [None, standing.point] if plan.arms > 2 and standing else [None]
        point = problem.space.name(plan.candidate.observation.values)
        judged = [judged_finalists(records, search, problem.objective, against=one) for one in asked]
        return [next((one.judgement for one in some if one.trial.point == point), None) for some in judged]

    def _is_time_to_go_on(self, done: int, plan: ConfirmationPlan) -> bool:
        """Return whether further pairs, beyond the fewest, would take the time of the validation, or of the race."""
        afterwards_s = self._afterwards_s()
        two_rounds = 2 * plan.arms  # ABBA is whole
        if not afterwards_s or done % two_rounds or done < plan.arms * LEAST_PAIRS:
            return False
        return self._parts.budget.left_s() < afterwards_s + CAUTION * two_rounds * plan.trial_s
