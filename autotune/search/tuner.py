"""One search, from its first process to its answer. Read `Tuner.run` first; one trial is `TrialMaker.make_once`."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from autotune.clock import format_duration
from autotune.errors import AutotuneError, CodeChanged, StudyError, TrialError
from autotune.events import Event, Remark, SearchStarted
from autotune.limits import expected
from autotune.measure.score import LEAST_PAIRS
from autotune.measure.window import WindowGoal
from autotune.records import CONFIRMED, Ending, Purpose, SearchResult, TrialRecord, Validity, Verdict
from autotune.sampler.acquisition import Proposal
from autotune.search.answer import answer_of_search, answer_of_study
from autotune.search.confirm import (
    Candidate,
    ConfirmationBasis,
    ConfirmationPlan,
    least_needed_s,
    pair_order,
    plan_confirmation,
    reserved_s,
)
from autotune.search.findings import Findings
from autotune.search.other_machines import LeftOut, OtherMachines
from autotune.search.parts import Narrator, SearchParts
from autotune.search.preflight import try_relative_outputs
from autotune.search.problem import Problem
from autotune.search.race import Racer
from autotune.search.schedule import (
    CAUTION,
    FOR_CONFIRMATION,
    MOST_FOR_CONFIRMING,
    NOTHING_BETTER,
    baseline_cache_time_limit_s,
    design_points,
    expected_trial_s,
    least_confirmation_s,
    longest_trial_s,
    never_trains,
    promised_by_the_rest,
    time_limit_s,
    why_exploring_ends,
)
from autotune.search.state import SearchState
from autotune.search.take_back import TakeBack
from autotune.search.trial_maker import Failed, PlannedTrial, PointTaken, TrialMaker
from autotune.search.validation import Validator
from autotune.search.worth import rate, rate_knobs
from autotune.study.answer import has_failed, judged_finalists
from autotune.trial.explanations import EXPLANATIONS

WARM_UP_FROM_S = 120.0
"""Budgets below this go without the unmeasured first trial that fills the machine's page cache."""

_FAR_SLOWER = 0.8
"""Share of today's speed below which no more than two pairs are made: what chose the point did not see its stalls."""

_EXPLORES = 0.45
"""Share of the budget that exploring has before time is kept for a close and small answer."""

_FOR_PAIRS = 0.55  # of what is left then, at most, where taking back needs time, too

_NO_ACCIDENTS = frozenset({Ending.KILLED_BY_BUDGET, Ending.UNCOUNTED})
_WARM_UP = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)


class Tuner:
    """One search.

    Attributes:
        ended_by: What ended the search before its time; None if nothing did.
        left_because: Reason for which this machine has left the study to others; empty if it did not.
        promised: Gain in ln score that exploring on promised when its latest trial was chosen; None before the first.
    """

    def __init__(self, parts: SearchParts, consumers: Iterable[Callable[[Event], None]]) -> None:
        self._parts = parts
        self._problem = parts.problem
        self._budget = parts.budget
        self._findings = Findings(parts.problem, parts.clock)
        self.state = SearchState(
            parts.problem,
            parts.study,
            self._findings,
            sampler=parts.sampler,
            seed=parts.seed,
            budget_s=parts.budget.budget_s,
            warm_start=parts.warm_start,
        )
        self._narrator = Narrator(consumers, self._findings.remarks)
        self._trials = TrialMaker(parts, self.state, self._findings, self._narrator)
        self._baseline = PlannedTrial(values=parts.problem.space.baseline, purpose=Purpose.BASELINE)
        self._validator = Validator(parts, self.state, self._trials, self._narrator)
        self._take_back = TakeBack(parts, self.state, self._trials, self._narrator)
        self._racer = Racer(parts, self.state, self._trials, self._narrator)
        self._rng = random.Random(parts.seed)
        self._others = OtherMachines(parts, self.state, self._narrator.tell)
        self._is_no_better = False
        self._seen = 0  # trials, when there was nothing to confirm
        self._lacks_time = False  # for a confirmation
        self._had_enough = False  # of exploring, before it was seen what comes of it
        self.ended_by: AutotuneError | None = None
        self.left_because = ""
        self.promised: float | None = None

    def run(self) -> SearchResult:
        """Search until the budget is used or nothing left can pay, and confirm.

        What ends it before that is in `ended_by`; the answer is made of what was measured until then.

        Raises:
            AutotuneError: No trial gave numbers to answer with; most often a `TrialError`.
            CodeChanged: The trainer's code was edited meanwhile.
            KeyboardInterrupt: ^C; everything finished so far is in the record.
        """
        self._tell_start()
        try:
            if self._budget.budget_s >= WARM_UP_FROM_S:
                self._trials.make_once(replace(self._baseline, goal=_WARM_UP, warms_up=True))
            self._measure_baseline()
            self._try_standing_answer()
            if alone := self.state.leave_alone(self.state.baseline_point):
                self._narrator.tell_phase("exploring", alone)
            why = self._explore()
            while self._confirm(why) and (self._is_no_better or self._breaks() or self._is_in_vain(why)):
                why = self._explore()  # around what is left: the next best has its turn
            self._race()
            self._others.wait_for_their_confirmations()
        except LeftOut as left:
            self.left_because = str(left)
            self._narrator.tell_phase("ending", f"this machine leaves: {left}")
            self._others.wait_for_their_confirmations()
        except (BrokenPipeError, CodeChanged):
            raise  # nobody listens any more; what was measured says nothing of the trainer as it is now
        except (AutotuneError, OSError, MemoryError, RuntimeError) as error:
            self.ended_by = expected(error)
            if self.ended_by is None:
                raise
        return self._answer()

    @property
    def failures(self) -> Mapping[Ending, Failed]:
        """The first trial of each kind that gave no numbers by a fault of the trainer's."""
        return self._trials.failures

    @property
    def outcomes(self) -> Counter[str]:
        """Number of trials of this search by ending."""
        return Counter(trial.ending.value for trial in self.state.trials)

    def best_trials(self, points: int = 5) -> set[str]:
        """Return the names of the trials of the best points, whose folders are worth keeping."""
        names = {candidate.observation.name for candidate in self.state.better()[:points]} | {self.state.baseline_point}
        return {self._parts.trial_name(trial.number) for trial in self.state.trials if trial.point in names}

    def _tell_start(self) -> None:
        self._narrator.tell(
            SearchStarted(
                search=self._parts.search,
                study=self._parts.study.name,
                config=str(self._problem.config_path),
                baseline=self._problem.space.baseline,
                points=self.state.space.size,
                trials_found=len(self._parts.study.records()),
                budget_s=self._budget.budget_s,
                measures=self._problem.measures,
            )
        )
        stands = self._study_answer() if self.state.contender() else None
        if stands and stands.best and stands.speedup and stands.best.point != self.state.baseline_point:
            changes = self._problem.space.changes(stands.best.values)
            self._narrator.tell_standing(
                stands.best.values, changes, stands.speedup.ratio, self.state.observed_name(stands.best.values)
            )

    # The baseline

    def _measure_baseline(self) -> None:
        """Measure what everything is compared with.

        Raises:
            TrialError: The budget ended before that, or what is searched for cannot be measured.
        """
        limit_s = math.inf
        if self.state.space.settles(self._baseline.values):
            limit_s = baseline_cache_time_limit_s(self._budget.budget_s)
        record = self._trials.make(replace(self._baseline, limit_s=limit_s, goal=self.state.first_goal()))
        if record.validity is Validity.COLD:
            if not self._trials.filled_files:  # else the next one has what this one left behind
                self._leave_caches_alone()
            record = self._trials.make(self._baseline)
        if self._may_have_been_an_accident(record):
            record = self._trials.make(self._baseline)  # all depends on it
        if record.ending is Ending.CRASHED and record.validity is Validity.UNMEASURED:
            self._require_that_paths_are_taken(record)
        self._others.require_that_today_works(record)
        require_baseline(record, self._problem, budget_s=self._budget.budget_s, earlier=self.state.trials)
        if longer := self.state.why_longer():
            self._narrator.tell(Remark(text=longer))

    def _require_that_paths_are_taken(self, record: TrialRecord) -> None:
        """Raise an error if the trainer, which crashed before its first step, makes some with relative output paths."""
        parts = self._parts
        name = f"{parts.name}-outputs"
        tried = try_relative_outputs(self._problem, parts.runner, parts.clock, name=name, wall_s=parts.budget.wall_s)
        if tried is not None:
            tried.trial.folder.delete()
            if tried.trial.steps:
                raise tried.error(record.detail, where=str(self._problem.config_path))

    def _leave_caches_alone(self) -> None:
        self.state.leave_caches_alone()
        why = "caches stay as they are: one pass over the data, which fills them, does not fit into a trial"
        if self.state.filling:
            why += "; they are compared without the time they wait for data"
        self._narrator.tell_phase("exploring", why)

    def _may_have_been_an_accident(self, record: TrialRecord) -> bool:
        if record.comparable or record.ending in _NO_ACCIDENTS or self._trials.gpu_lost:
            return False
        return not never_trains(self.state.trials)

    def _try_standing_answer(self) -> None:
        """Make a trial of the answer that the study stands by, as far as there is time: here it may fail."""
        values, left_s = self.state.contender(), self._budget.left_s()
        if values is not None and expected_trial_s(self.state.trials) < left_s:
            with suppress(PointTaken):
                self._try(Proposal(values=values, gain=0.0, is_repeat=True), left_s)

    # Exploring

    def _explore(self) -> str:
        """Propose, run, judge and learn, as long as that pays and fits in front of what comes after it.

        Returns:
            Reason why that ends.
        """
        self._narrator.tell_phase("exploring", self._why_exploring())
        while True:
            self._others.take_in()
            if why := self._others.why_exploring_ends():
                break
            if self._others.is_time_for_baseline():
                self._others.require_that_today_works(self._trials.make(self._baseline))
            all_s = self._budget.left_s()
            kept_s, kept_closely_s = (self._kept_s(closely=closely) for closely in (False, True))
            explores_s = _EXPLORES * self._budget.budget_s - self._budget.elapsed_s()
            left_s = max(all_s - kept_closely_s, min(all_s - kept_s, explores_s))
            baseline, budget_s = self.state.baseline_point, self._budget.budget_s
            longest_s = longest_trial_s(self.state.trials, baseline, all_s, budget_s=budget_s) if kept_s else math.inf
            design = design_points(self.state.trials, self.state.space.size, left_s)
            proposal = self.state.next_trial(longest_s, design)
            is_patient = self._parts.exhaust or self._had_enough or self._narrator.better_at is None
            why = self._trials.gpu_lost or why_exploring_ends(
                self.state.trials,
                proposal,
                self.state.space,
                tried_share=0.0 if self._parts.exhaust else self.state.tried_share,
                left_s=left_s,
                since_better=0 if is_patient else len(self.state.trials) - (self._narrator.better_at or 0),
                gain_of=self.state.gain_of,
            )
            if why or proposal is None:
                break
            self.promised = promised_by_the_rest(self.state.trials, proposal, left_s)
            with suppress(PointTaken):  # then it is known by the time of the next proposal
                self._try(proposal, all_s - kept_s)
        return why

    def _kept_s(self, *, closely: bool) -> float:
        """Return the time that is not for exploring; 0 while there is nothing to confirm, or no time to.

        Args:
            closely: Whether to keep what makes the answer close and small, too.
        """
        if not self._parts.confirms:
            return 0.0
        better, left_s = self.state.better(), self._budget.left_s()
        kept_s = reserved_s(better, self._confirmation_basis(), left_s=left_s, closely=closely)
        if not kept_s:
            return 0.0
        kept_s += self.state.finalist_look_s + self._afterwards_s()
        return kept_s + self._take_back.needed_s() if closely else kept_s

    def _why_exploring(self) -> str:
        why, left_s = "looking for better values", self._budget.left_s()
        trials, baseline = self.state.trials, self.state.baseline_point
        needed_s = least_confirmation_s(trials, baseline, budget_s=self._budget.budget_s)
        if needed_s <= left_s:
            return why
        left = format_duration(max(0.0, left_s))
        return (
            f"{why}; none can be confirmed in this search: {left} is left, {format_duration(needed_s)} needed at least"
        )

    def _try(self, proposal: Proposal, left_s: float) -> None:
        """Make the proposed trial, in the time that is left for exploring."""
        record = self._trials.make(
            PlannedTrial(
                values=proposal.values,
                purpose=Purpose.REPEAT if proposal.is_repeat else Purpose.EXPLORE,
                ends_s=self._parts.clock.now_s() + left_s,
                limit_s=time_limit_s(
                    self.state.trials,
                    settles=self.state.space.settles(proposal.values),
                    left_s=left_s,
                    budget_s=self._budget.budget_s,
                ),
            )
        )
        if record.validity is Validity.COLD and not self.state.has_settled():
            self._leave_caches_alone()

    # The confirmation

    def _confirm(self, why: str) -> bool:
        """Measure the best point against today's config again, in turn, in trials that did not choose it.

        Returns:
            Whether all of them could be compared, or there was nothing to confirm and there may be more to try.
        """
        better: Sequence[Candidate] = self.state.better()
        if better:
            spare_s = self._budget.left_s() - least_needed_s(better, self._confirmation_basis())
            self._others.wait_for_their_trials(min(expected_trial_s(self.state.trials), spare_s))
            better = self.state.better()
        if not self._others.why_exploring_ends():
            better = self._smallest(better)
        better = self._others.to_be_confirmed(better or self.state.contender_alone())
        left_s = self._budget.left_s() - self.state.finalist_look_s
        if not better or self._trials.gpu_lost:
            has_more, self._seen = len(self.state.trials) > self._seen, len(self.state.trials)
            self._is_no_better = has_more and why == FOR_CONFIRMATION and not self._trials.gpu_lost
            if self._is_no_better:
                return True  # the time that was kept for it is there again
            self._narrator.tell_phase("ending", "no time is left for another trial" if why == FOR_CONFIRMATION else why)
            return False
        basis = self._confirmation_basis()
        afterwards_s = self._afterwards_s()
        plan = plan_confirmation(better, basis, left_s=left_s - afterwards_s, may_be_cut=not afterwards_s)
        if plan is None and not self._validator.has_broken:
            plan = plan_confirmation(better, basis, left_s=left_s)
        if plan is None:
            needed = format_duration(least_needed_s(better, basis) + self._validator.needed_s)
            left = format_duration(max(0.0, left_s))
            another = "another point" if self._validator.has_broken else "a point"
            why = "the budget is used up" if why == FOR_CONFIRMATION else why
            self._narrator.tell_phase("ending", f"{why}; to confirm {another} takes {needed}, and {left} is left")
            self._lacks_time = True
            return False
        self._narrator.tell_phase("confirming", why)
        with self._others.confirming(plan.candidate.observation.name):
            return self._make_pairs(plan)

    def _smallest(self, better: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the points that are believed to be better, the first without the changes that are not worth it."""
        kept_s = self._kept_s(closely=False)
        if not kept_s or self._problem.objective.by_utilization or self.state.is_standing(better[0]):
            return better
        close_s = self._kept_s(closely=True) - self._take_back.needed_s()
        kept_s = max(kept_s, min(close_s, _FOR_PAIRS * self._budget.left_s()))
        name = self._problem.space.name(self._take_back.simplified(better[0].observation.values, kept_s=kept_s))
        return sorted(self.state.better(), key=lambda candidate: candidate.observation.name != name)

    def _make_pairs(self, plan: ConfirmationPlan) -> bool:
        self._is_no_better, contender = False, self.state.contender()
        first_pair = 1 + max((trial.pair for trial in self._made_here() if trial.pair is not None), default=-1)
        points = [self._baseline.values, plan.candidate.observation.values]
        if contender is None or self.state.is_standing(plan.candidate):
            plan = replace(plan, arms=2)
        else:
            plan, points = replace(plan, arms=3), [*points, contender]
        if plan.arms == 2 and (alike := self.state.same_training(plan.candidate)) is not None:
            plan, points = replace(plan, arms=3), [*points, alike]
        looked = {0}  # at today's config in the beginning
        speeds: dict[int, list[float]] = {}
        alone = self._others.take_turns
        done, spoiled = 0, set[int]()  # trials of pairs without one that was not steady; the others
        for pair, arm in pair_order(2 * plan.pairs, self._rng, plan.arms):
            if pair in spoiled:
                continue
            done += 1
            usual = self.state.goal()
            window_s = max(usual.length_s + plan.longer_s, 0.0 if arm in looked else self.state.finalist_look_s)
            looked.add(arm)
            # stalls that come up are waited for, as far as the other trials leave time
            fair_s = self._budget.left_s() / (plan.arms * plan.pairs - done + 1) - plan.usual_trial_s + usual.length_s
            trial = PlannedTrial(
                values=points[arm],
                purpose=Purpose.CONFIRM,
                pair=first_pair + pair,
                alone=alone,
                planned_pairs=plan.pairs if plan.sequential else None,
                goal=replace(usual, target_s=window_s, most_s=min(usual.most_s, max(window_s, fair_s))),
            )
            record = self._trials.make(trial, kept_s=plan.rest_s(done))
            if self._may_have_been_an_accident(record):
                record = self._trials.make(trial, kept_s=plan.rest_s(done))
            if self._trials.gpu_lost:
                self._narrator.tell_phase("ending", self._trials.gpu_lost)
            if record.validity is Validity.NOT_STEADY and not has_failed(record):
                spoiled.add(pair)
                done -= 1 + (done - 1) % plan.arms
                continue
            if not record.comparable:
                return False
            speeds.setdefault(arm, []).append(record.comparable.speed)
            self._is_no_better = done == 2 * plan.arms and fmean(speeds[1]) < _FAR_SLOWER * fmean(speeds[0])
            is_over = done == plan.arms * plan.pairs
            if is_over or self._is_no_better or self._is_time_to_go_on(done, plan) or self._is_decided(done, plan):
                break
        return True

    def _made_here(self) -> list[TrialRecord]:
        member = self._parts.study.member
        if member is None:
            return self.state.trials
        records = self._parts.study.records()
        return [trial for trial in records if trial.search == member.search and trial.machine == member.machine]

    def _is_decided(self, done: int, plan: ConfirmationPlan) -> bool:
        """Return whether a sequential confirmation stops here: judged as the answer will be, by the record alone."""
        if not plan.is_look(done):
            return False
        records, search = self.state.records(), self._parts.search
        asked = [None, self.state.standing.point] if plan.arms > 2 and self.state.standing else [None]
        point = self._problem.space.name(plan.candidate.observation.values)
        judged = [judged_finalists(records, search, self._problem.objective, against=one) for one in asked]
        own = [next((one[1] for one in some if one[0].trial.point == point), None) for some in judged]
        return all(map(plan.is_decided_by, own))

    def _is_time_to_go_on(self, done: int, plan: ConfirmationPlan) -> bool:
        """Return whether further pairs, beyond the fewest, would take the time of the validation, or of the race."""
        afterwards_s = self._afterwards_s()
        two_rounds = 2 * plan.arms  # ABBA is whole
        if not afterwards_s or done % two_rounds or done < plan.arms * LEAST_PAIRS:
            return False
        return self._budget.left_s() < afterwards_s + CAUTION * two_rounds * plan.trial_s

    def _breaks(self) -> bool:
        """Validate the point that was confirmed last, if it is better and that was asked for.

        Returns:
            Whether it broke, so that it cannot be the answer.
        """
        result = self._summary()
        return result is not None and result.verdict in CONFIRMED and self._validator.breaks(result)

    def _is_in_vain(self, why: str) -> bool:
        """Return whether exploring had ended early for a point that is not shown to be better."""
        result = self._summary()
        is_sure = result is not None and result.verdict in CONFIRMED
        if self._had_enough or not why.startswith(NOTHING_BETTER):
            return False
        self._had_enough = True
        if is_sure:
            used, budget = (format_duration(one) for one in (self._budget.elapsed_s(), self._budget.budget_s))
            self._narrator.tell(
                Remark(text=f"Sure after {used} of {budget}; --exhaust uses the rest to look for more.")
            )
        return not is_sure

    def _race(self) -> None:
        """Race the point that is the answer, if that was asked for or is called for."""
        result = self._summary()
        if result is not None and result.best and result.verdict in CONFIRMED and not self._trials.gpu_lost:
            self._racer.race(result.best.values)

    def _afterwards_s(self) -> float:
        """Return the time that is kept for what comes after the confirmation of the point that is best now."""
        better = self.state.better()
        return self._validator.needed_s + self._racer.needed_s(better[0].observation.values if better else None)

    def _confirmation_basis(self) -> ConfirmationBasis:
        return self.state.confirmation_basis(budget_s=self._budget.budget_s)

    # The answer

    def _answer(self) -> SearchResult:
        """Sum up what was measured.

        Raises:
            AutotuneError: No trial gave numbers; what ended the search, if something did.
        """
        self._rate()
        self._findings.look_back()
        trials, result = self.state.trials, self.answer_so_far()
        if result and result.verdict in CONFIRMED and result.best and not self.state.left_out:
            trials_of_all = self.state.records()
            if said := self._parts.warm_start.of_answer(result.best.values, trials_of_all, self._problem.space):
                self._narrator.tell(Remark(text=said))
        self._narrator.tell_end(result, trials=len(trials), elapsed_s=self._budget.elapsed_s())
        if result is None:
            raise self.ended_by or _no_numbers(trials, self._problem.config_path)
        return replace(
            result,
            gain_of_ten_minutes=self.state.gain_of_ten_minutes(),
            budget_enough_s=self._budget_enough_s(result),
            why_not_raced=result.why_not_raced and (self._racer.why_not or result.why_not_raced),
            cautions=(*result.cautions, *self._cautions()),
        )

    def _budget_enough_s(self, result: SearchResult) -> float | None:
        """Return the budget of which the shortest full confirmation of the best point takes the share that it may.

        Where pairs did not tell, it is twice as long as today's; None where more time would not tell more.
        """
        if result.verdict is not Verdict.NO_CHANGE or not (result.candidate or self._lacks_time):
            return None
        if (better := self.state.better()) and result.speedup is None:
            needed_s = CAUTION * LEAST_PAIRS * self._confirmation_basis().pair_s(better[0]) / MOST_FOR_CONFIRMING
            return max(needed_s, 1.5 * self._budget.budget_s)
        return 2.0 * self._budget.budget_s

    def answer_so_far(self) -> SearchResult | None:
        """Return the answer of the study with what this search has measured so far; None without numbers of it.

        What each change is worth is told where it is known, see `_rate`.
        """
        own = self._summary()
        is_alone = own is None or own.verdict is Verdict.NO_BASELINE or self.state.left_out
        result = own if is_alone else self._study_answer()
        if result is None or own is None or result.search == own.search:
            return result
        why, then = f"{result.why}; nothing that this search tried takes its place", result.baseline
        cautions = own.cautions
        if then is not None and then.point != self.state.baseline_point:
            held = ", ".join(f"{path}: {value}" for path, value in then.values.items())
            cautions += (f"It was confirmed against other values than the config holds now: {held}.",)
        return replace(result, why=why, trials=own.trials, outcomes=own.outcomes, cautions=cautions)

    def _rate(self) -> None:
        """Find what each change is worth, and keep it with the study: nobody else fits a model for it."""
        own = self._summary()
        known = self.state.records(), self._problem.space, self._problem.objective
        rating = own and rate(own, *known)
        if own and rating:
            with suppress(StudyError):  # then others do not see it
                self._parts.study.keep_rating(own.search, rating)
        if own and (knobs := rate_knobs(own, *known)):
            self._narrator.tell(knobs)

    def _summary(self) -> SearchResult | None:
        """Return the answer that this search's own trials give."""
        study, records = self._parts.study, self.state.records()
        return answer_of_search(self._problem, records, self._parts.search, study.ratings, space=self.state.space)

    def _study_answer(self) -> SearchResult | None:
        return answer_of_study(self._problem, self.state.records(), self._parts.study.ratings)

    def _cautions(self) -> tuple[str, ...]:
        """Return what the reader of the answer should know besides its numbers."""
        trouble = self._trials.gpu_lost or (self.ended_by and self.ended_by.message)
        lost = (f"The search could not go on: {trouble}.",) if trouble else ()
        left = (f"This machine was left out: {self.left_because}.",) if self.left_because else ()
        return (*lost, *left, *self._trials.cautions, *self._findings.cautions)


def _no_numbers(trials: Sequence[TrialRecord], config: Path) -> TrialError:
    endings = sorted({trial.ending.value for trial in trials})
    said = f" ({', '.join(endings)})"
    remedy = "What the first of each kind said is printed above; mend that and run the same command again."
    if len(endings) == 1:
        said, remedy = f": {_failure(trials[-1])}", EXPLANATIONS[trials[-1].ending].remedy
    return TrialError(f"none of {len(trials)} trials gave numbers{said}", where=str(config), remedy=remedy)


def _failure(trial: TrialRecord) -> str:
    sentence = EXPLANATIONS[trial.ending].sentence.removesuffix(".")
    return f"{sentence} ({trial.detail})" if trial.detail else sentence


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
            f"today's config gave no numbers: {_failure(failed[0])}; the budget of {budget} ended while it was tried "
            "again",
            EXPLANATIONS[failed[0].ending].remedy,
        )
    return (
        f"no training step that counts was seen within the budget of {budget}"
        f"{f': {record.detail}' if record.detail else ''}",
        "Give it more time if training takes longer than that to start. If the trainer does not report\n"
        "its steps, add to its loop:  from autotune.trainee import step;  step(samples=...)",
    )
