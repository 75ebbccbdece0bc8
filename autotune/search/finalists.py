"""Finalists of a search: simplified, then confirmed against the baseline in interleaved pairs."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.clock import format_duration
from autotune.measure.score import LEAST_PAIRS, Judgement
from autotune.records import Purpose, Ratio, TrialRecord, Values
from autotune.sampler.importance import INDISTINGUISHABLE
from autotune.search.confirm import (
    Arm,
    Candidate,
    Confirmation,
    ConfirmationBasis,
    ConfirmationPlan,
    affordable,
    least_needed_s,
    plan_confirmation,
    plan_hurried,
    reserved_s,
)
from autotune.search.model import Model
from autotune.search.other_machines import OtherMachines
from autotune.search.parts import SearchParts
from autotune.search.race import Racer
from autotune.search.schedule import CAUTION, EndOfExploring, ExploringEnd, Outcome, expected_trial_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import SearchStage, TrialMaker
from autotune.search.validation import Validator
from autotune.search.worth import Ablation, without_changes
from autotune.space.knob import Knob, Label, same_scalar
from autotune.study.answer import has_only_failed, judged_finalists
from autotune.study.noise import trial_noise
from autotune.trial.execution import TrialSpec

_MOST_TO_LEARN = 0.3  # of the time that is left, for learning how long a cycle is
_LOOK_WITH_TIME, _LONGEST_LOOK_S = 0.15, 40.0  # of the time that is left, for the first trial of each point
_FOR_PAIRS = 0.55  # of the time left then, at most, if simplifying needs time, too
_FOR_BOTH = 0.6  # of the budget, at most, for separate pairs of two answers


class Finalists(SearchStage):
    """Finalists of a search.

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
        self._simplifier = Simplifier(parts, state, trials)
        self._rng = random.Random(parts.options.seed)
        self._chosen: Sequence[Candidate] = ()
        self._unchanging: Candidate | None = None  # the best that leaves the training unchanged
        self._seen = 0  # trials, when there was nothing to confirm
        self.lacks_time = False

    def kept_s(self, *, closely: bool) -> float:
        """Return the time to keep from exploring; `closely` includes a narrow interval and simplification."""
        if not self._parts.confirms:
            return 0.0
        better, left_s = self._state.model.better(), self._parts.budget.left_s()
        kept_s = reserved_s(better, self.basis(), left_s=left_s, closely=closely)
        if not kept_s:
            return 0.0
        kept_s += self._later_stages_s()
        if (own := self._separate_pairs(better[0], self._state.answer.same_training())) is not None:
            unchanging, basis = own
            both_s = kept_s + basis.least_s(unchanging) + basis.look_s
            kept_s = both_s if both_s <= _FOR_BOTH * self._parts.budget.budget_s else kept_s
        return kept_s + self._simplifier.needed_s(self._best_of_each()) if closely else kept_s

    def basis(self) -> ConfirmationBasis:
        best = next(iter(self._state.model.better()), None)
        return self._state.answer.confirmation_basis(() if best is None else self._further(best))

    def _later_stages_s(self) -> float:
        better = self._state.model.better()
        return self._validator.needed_s + self._racer.needed_s(better[0].observation.values if better else None)

    # Which

    def simplify(self) -> Outcome:
        if better := self._state.model.better():
            spare_s = self._parts.budget.left_s() - least_needed_s(better, self.basis())
            self._others.wait_for_their_trials(min(expected_trial_s(self._state.trials.own), spare_s))
        finalists, answer = self._best_of_each(), self._state.answer
        names = [self._simplified(one, finalists[place + 1 :]) for place, one in enumerate(finalists)]
        better = self._state.model.better()
        best_first = sorted(better, key=lambda one: one.observation.name not in names[-1:])
        self._chosen = self._others.confirmable(best_first or answer.contender_candidates())
        unchanging_first = sorted(better, key=lambda one: one.observation.name not in names[:1])
        unchanging = (one for one in unchanging_first if answer.is_same_training(one.observation.values))
        self._unchanging = next(unchanging, None)
        return Outcome.DONE

    def _best_of_each(self) -> list[Candidate]:
        """Return the best point of each target, the overall best last."""
        best = {one.observation.name: one for target in self._state.targets for one in target.better()[:1]}
        return list(best.values())[::-1]

    def _simplified(self, finalist: Candidate, others: Sequence[Candidate]) -> str:
        kept_s, needed_s, left_s = self.kept_s(closely=False), self._simplifier.needed_s, self._parts.budget.left_s()
        if not kept_s or self._simplifier.keeps(finalist) or self._others.why_exploring_ends():
            return finalist.observation.name
        close_s = self.kept_s(closely=True) - needed_s(self._best_of_each())
        kept_s = max(kept_s, min(close_s, _FOR_PAIRS * left_s))
        kept_s += min(needed_s(others), 0.5 * max(0.0, left_s - kept_s))
        return self._parts.problem.space.name(self._simplifier.simplified(finalist.observation.values, kept_s=kept_s))

    # The confirmation

    def confirm(self, ended: EndOfExploring) -> Outcome:
        """Measure the best point against the baseline, interleaved."""
        left_s = self._parts.budget.left_s()
        is_short = ended.kind is ExploringEnd.TIME
        if not self._chosen or self._trials.gpu_lost:
            has_more, self._seen = len(self._state.trials.own) > self._seen, len(self._state.trials.own)
            if has_more and is_short and not self._trials.gpu_lost:
                return Outcome.TIME_FREED
            self._events.change_phase("ending", "no time left for another trial" if is_short else ended.why)
            return Outcome.ENDED
        outcome: Outcome | None = None
        for group, basis, kept_s in self._groups():
            left_s = self._parts.budget.left_s() - kept_s
            plan = self._plan(group, basis, left_s, is_last=not kept_s)
            if plan is None:
                continue
            self._events.change_phase("confirming", ended.why)
            with self._others.confirming(plan.candidate.observation.name):
                # a validation or a race measures for longer anyway
                has_time = not is_short and not self._later_stages_s() and 2.0 * plan.rest_s(0) < left_s
                if ended.kind is ExploringEnd.EXHAUSTED:  # nothing else could use the time
                    looks_s = plan.arms * _LOOK_WITH_TIME * left_s if has_time else 0.0
                    plan = plan.extended(left_s - self._later_stages_s() - looks_s)
                outcome = self._make_pairs(plan, has_time=has_time)
        if outcome is not None:
            return outcome
        needed = format_duration(least_needed_s(self._chosen, self.basis()) + self._validator.needed_s)
        left = format_duration(max(0.0, self._parts.budget.left_s()))
        another = "another point" if self._validator.has_broken else "a point"
        why = "the budget is used up" if is_short else ended.why
        self._events.change_phase("ending", f"{why}; confirming {another} takes {needed}, and {left} is left")
        self.lacks_time = True
        return Outcome.ENDED

    def _groups(self) -> Iterator[tuple[Sequence[Candidate], ConfirmationBasis, float]]:
        """Yield groups of points to confirm the best of, their basis, and the time to keep for the next group.

        Without time for three arms, the best point that leaves the training unchanged gets separate pairs first.
        """
        basis, own = self.basis(), self._separate_pairs(self._chosen[0], self._unchanging)
        if own is not None and not self._validator.has_broken:
            (unchanging, alone), left_s = own, self._parts.budget.left_s()
            if affordable([unchanging], alone, left_s=left_s) is not None:
                spare_s = left_s - alone.least_s(unchanging) - alone.look_s
                faster = [one for one in self._chosen if one.gain > unchanging.gain]
                needed_s = [CAUTION * basis.least_s(one) + basis.look_s for one in faster[:1]]
                needed_s += sorted((basis.hurried_pairs_s(one) for one in faster), reverse=True)
                yield [unchanging], alone, next((one_s for one_s in needed_s if one_s <= spare_s), 0.0)
                self._unchanging = None  # it runs in no other pairs
        yield self._chosen, basis, 0.0

    def _separate_pairs(
        self, best: Candidate, unchanging: Candidate | None
    ) -> tuple[Candidate, ConfirmationBasis] | None:
        """Return the same-training point and its basis if it does not fit the pairs of the best one."""
        if unchanging is None or unchanging.observation.name in (best.observation.name, *self._further(best)):
            return None
        return unchanging, self._state.answer.confirmation_basis(self._further(unchanging))

    def _further(self, candidate: Candidate) -> tuple[str, ...]:
        return tuple(map(self._parts.problem.space.name, self._further_points(candidate)))

    def _further_points(self, candidate: Candidate) -> list[Values]:
        unchanging = self._unchanging if self._chosen else self._state.answer.same_training()
        return self._state.answer.further(candidate, unchanging.observation.values if unchanging else None)

    def _plan(
        self, points: Sequence[Candidate], basis: ConfirmationBasis, left_s: float, *, is_last: bool
    ) -> ConfirmationPlan | None:
        later_stages_s = self._later_stages_s()
        may_be_cut = is_last and not later_stages_s
        plan = plan_confirmation(points, basis, left_s=left_s - later_stages_s, may_be_cut=may_be_cut)
        if plan is None and not self._validator.has_broken:
            plan = plan_confirmation(points, basis, left_s=left_s)
            plan = plan or plan_hurried(points, basis, left_s=left_s)
        return plan

    def _make_pairs(self, plan: ConfirmationPlan, *, has_time: bool) -> Outcome:
        further = self._further_points(plan.candidate)
        points = [self._parts.problem.space.baseline, plan.candidate.observation.values, *further]
        plan = replace(plan, arms=len(points))
        first_pair = 1 + max((trial.pair for trial in self._local_trials() if trial.pair is not None), default=-1)
        confirmation = Confirmation(plan, self._rng)
        looks_s = [self._state.windows.finalist_look_s if plan.longer_s >= 0.0 else 0.0] * plan.arms
        if has_time:  # to see rare stalls
            spare_s = min(_LONGEST_LOOK_S, _LOOK_WITH_TIME * self._parts.budget.left_s())
            looks_s = [max(look_s, spare_s) for look_s in looks_s]
        else:
            looks_s[0] = 0.0  # the first trial of the search has measured the baseline for long
        while (turn := confirmation.next()) is not None:
            look_s = looks_s[turn.arm] if turn.is_first else 0.0
            trial = self._trial_of(turn, points[turn.arm], plan, first_pair, look_s)
            record = self._trials.make(trial, kept_s=plan.rest_s(turn.done))
            if self._trials.should_retry(record):
                record = self._trials.make(trial, kept_s=plan.rest_s(turn.done))
            if self._trials.gpu_lost:
                self._events.change_phase("ending", self._trials.gpu_lost)
            confirmation.add(record)
            if confirmation.is_look:
                confirmation.look(self._judgements(plan))
            if confirmation.outcome is None and self._needs_time_for_later_stages(turn.done, plan):
                break
        return confirmation.outcome or Outcome.MEASURED

    def _trial_of(self, turn: Arm, values: Values, plan: ConfirmationPlan, first_pair: int, look_s: float) -> TrialSpec:
        usual = self._state.windows.usual()
        trials_left, left_s = plan.arms * plan.most_pairs - turn.done + 1, self._parts.budget.left_s()
        fair_s = left_s / trials_left - plan.usual_trial_s + plan.usual_window_s
        # the usual window may have become longer since
        planned_s = plan.usual_window_s + plan.longer_s
        window_s = max(min(usual.length_s + plan.longer_s, max(planned_s, fair_s)), look_s)
        # wait for stalls, if the other trials leave time
        most_s = min(usual.most_s, max(window_s, fair_s))
        if turn.is_first and (to_learn_s := self._state.windows.to_learn_cycle_s(values)) < _MOST_TO_LEARN * left_s:
            most_s = max(most_s, to_learn_s)  # which makes all others shorter
        return TrialSpec(
            values=values,
            purpose=Purpose.CONFIRM,
            pair=first_pair + turn.pair,
            alone=self._others.runs_pairs_alone,
            planned_pairs=plan.planned_pairs,
            goal=replace(usual, target_s=window_s, most_s=most_s),
        )

    def _local_trials(self) -> list[TrialRecord]:
        member = self._parts.study.members.own
        if member is None:
            return self._state.trials.own
        records = self._parts.study.records()
        return [trial for trial in records if trial.search == member.search and trial.machine == member.machine]

    def _judgements(self, plan: ConfirmationPlan) -> list[Judgement | None]:
        """Judge the pairs from the record alone, as the answer will."""
        records, search, problem = self._state.trials.of_study(), self._parts.search, self._parts.problem
        current = self._state.answer.current
        asked = [None, current.point] if plan.arms > 2 and current else [None]
        point = problem.space.name(plan.candidate.observation.values)
        judged = [judged_finalists(records, search, problem.objective, against=one) for one in asked]
        return [next((one.judgement for one in some if one.trial.point == point), None) for some in judged]

    def _needs_time_for_later_stages(self, done: int, plan: ConfirmationPlan) -> bool:
        """Return whether optional pairs would take time kept for later stages."""
        later_stages_s = self._later_stages_s()
        two_rounds = 2 * plan.arms  # ABBA is whole
        if not later_stages_s or done % two_rounds or done < plan.arms * LEAST_PAIRS:
            return False
        return self._parts.budget.left_s() < later_stages_s + CAUTION * two_rounds * plan.trial_s


LEAST_GAIN = 1.01
"""Least ratio of speeds with and without a change that pays off."""

_MOST_OF_THE_BUDGET = 0.3
_DOUBTFUL = math.log(1.15)  # predicted gain, up to which changes are screened together
_LEAST_OF_TRAINING = 1.05
_PROMISING = 1.04  # over the least gain that pays off
_MOST_SCREENS = 3
_LEAST_TRIALS, _MOST_TRIALS = 2, 8  # of a point, per ablation of one change


class Simplifier(SearchStage):
    """Ablation of a finalist: drops changes that don't pay off."""

    def __init__(self, parts: SearchParts, state: SearchState, trials: TrialMaker) -> None:
        super().__init__(parts, state, trials)
        self._rng = random.Random(parts.options.seed)
        self._kept_s = 0.0

    def keeps(self, finalist: Candidate) -> bool:
        """Return whether a point is never simplified."""
        return self._parts.problem.objective.by_utilization or self._state.answer.is_current(finalist)

    def needed_s(self, finalists: Sequence[Candidate]) -> float:
        """Return the time to judge the changes of these points, within a share of the budget."""
        trials = 0.0
        for one in finalists:
            changes = len(self._state.model.space.changes(one.observation.values))
            if changes > 1 and not self.keeps(one):
                # as many as show a gain of 10 % at two standard errors
                trials += 2.0 + changes * max(2.0, 2.0 * (2.0 * self._state.model.sd / math.log(1.1)) ** 2)
        return min(trials * expected_trial_s(self._state.trials.own), _MOST_OF_THE_BUDGET * self._parts.budget.budget_s)

    def simplified(self, values: Values, *, kept_s: float) -> Values:
        """Return a point without the changes not shown to pay off, as time allows."""
        self._kept_s = kept_s + expected_trial_s(self._state.trials.own)  # for the simplified point, if it is new
        predicted = _predicted_gains(values, self._state.model)
        paths = sorted(predicted, key=predicted.__getitem__)
        if not self._fits([values, values]):
            return values
        left, what = format_duration(self._left_s), f"which of {len(paths)} changes pay off"
        if len(paths) == 1:  # the gain from one change is that of all
            paths, what = [], "whether a smaller change suffices"
        self._events.change_phase("simplifying", f"testing {what}, for at most {left}")
        doubtful = [path for path in paths if predicted[path] < _DOUBTFUL]
        values = self._screened(values, doubtful, others=len(paths) - len(doubtful))
        for place, path in enumerate(paths[len(doubtful) :], start=len(doubtful)):
            values = self._ablated(values, path, others=len(paths) - place - 1)
        for knob in self._state.model.space.growing:
            values = self._with_less(values, knob)
        self._kept_s = kept_s
        if not self._state.model.observation(values):
            self._try(values)
        return values

    def _screened(self, values: Values, paths: Sequence[str], *, others: int) -> Values:
        for screen in range(_MOST_SCREENS):
            rows = list(self._screen(values, paths))
            if not rows or not self._fits(rows, others=2 * others if screen else others):
                break
            for row in rows:
                if not self._is_known_to_fail(row) and self._fits([row]):
                    self._try(row)
            if all(self._is_decided(path, values) for path in paths):
                break
        dropped, space = [path for path in paths if self._can_drop(path, values)], self._state.model.space
        without = without_changes(values, dropped, space)
        return without if space.changes(without) else values

    def _screen(self, values: Values, paths: Sequence[str]) -> Iterator[Values]:
        """Yield the points of a two-level Hadamard design (Sylvester's) over the changes."""
        if not paths:
            return
        size = 1 << len(paths).bit_length()
        columns = self._rng.sample(range(1, size), len(paths))
        for row in self._rng.sample(range(size), size):
            taken = [path for path, column in zip(paths, columns, strict=True) if (row & column).bit_count() % 2]
            yield without_changes(values, taken, self._state.model.space)

    def _with_less(self, values: Values, knob: Knob) -> Values:
        """Return a point with the smallest value of a knob, beyond the baseline's, that is as fast."""
        place, today = (knob.index(one) or 0 for one in (values[knob.path], knob.baseline))
        for choice in knob.choices[today + 1 : place]:
            less, model = {**values, knob.path: choice}, self._state.model
            predicted, predicted_of_less = model.predicted([values, less])
            if model.observation(less) is not None and predicted - predicted_of_less > _DOUBTFUL:
                continue
            self._compare(values, less, knob.path, others=0)
            gain = self._gain(knob.path, values, less)
            if gain is not None and self._count_trials(less) and math.log(gain.ratio) < INDISTINGUISHABLE:
                return less
        return values

    def _ablated(self, values: Values, path: str, *, others: int) -> Values:
        without = without_changes(values, [path], self._state.model.space)
        works = self._compare(values, without, path, others=others)
        return without if works and self._can_drop(path, values, without) else values

    def _compare(self, values: Values, without: Values, path: str, *, others: int) -> bool:
        """Run trials of both points until their ratio is decided; return False if `without` fails."""
        if self._is_known_to_fail(without) or not self._state.model.space.changes(without):
            return False
        for _ in range(2 * _MOST_TRIALS):
            count, count_without = self._count_trials(values), self._count_trials(without)
            is_compared = count >= max(_LEAST_TRIALS, count_without)  # all ablations share the trials of `values`
            tried = without if is_compared else values
            if not self._fits([tried], others=others) or min(count, count_without) >= _MOST_TRIALS:
                break
            if not self._try(tried).comparable:
                return False
            if self._is_decided(path, values, without):
                break
        return True

    def _is_known_to_fail(self, values: Values) -> bool:
        point = self._parts.problem.space.name(values)
        return has_only_failed(point, self._state.trials.own) or self._state.model.why_not()(values) is not None

    def _can_drop(self, path: str, values: Values, without: Values | None = None) -> bool:
        """Return whether a change probably does not pay off, and is not promising."""
        ratio, least = self._gain(path, values, without), self._least_gain(path, values, without)
        return ratio is not None and ratio.ratio <= _PROMISING * least and _likely(ratio)[0] < math.log(least)

    def _is_decided(self, path: str, values: Values, without: Values | None = None) -> bool:
        """Return whether a change is shown to pay off, or hardly ever will be."""
        ratio, least = self._gain(path, values, without), self._least_gain(path, values, without)
        is_shown = ratio is not None and ratio.ratio > least and ratio.low > 1.0
        return is_shown or (ratio is not None and _likely(ratio)[1] < math.log(least))

    def _least_gain(self, path: str, values: Values, without: Values | None) -> float:
        space = self._state.model.space
        is_change = without is None or same_scalar(without[path], space.baseline[path])
        # a change of the training has to pay off clearly
        is_clear = is_change and space.label_of(path, values[path]) in (Label.BATCH, Label.PRECISION)
        return _LEAST_OF_TRAINING if is_clear else LEAST_GAIN

    def _gain(self, path: str, values: Values, without: Values | None) -> Ratio | None:
        baseline = self._state.model.space.baseline
        baseline = baseline if without is None else {**baseline, path: without[path]}
        noise = trial_noise(self._state.trials.own, self._parts.search, self._parts.problem.objective)
        known = Ablation(self._state.trials.own, baseline, values, noise)
        return known.ratio(path) if path in known else None

    def _count_trials(self, values: Values) -> int:
        point = self._parts.problem.space.name(values)
        return sum(trial.point == point and trial.purpose is Purpose.TAKE_BACK for trial in self._state.trials.own)

    def _fits(self, points: Sequence[Values], *, others: int = 0) -> bool:
        needed_s = sum(map(self._state.model.expected_s, points)) + others * expected_trial_s(self._state.trials.own)
        return not self._trials.gpu_lost and needed_s < self._left_s

    @property
    def _left_s(self) -> float:
        return self._parts.budget.left_s() - self._kept_s

    def _try(self, values: Values) -> TrialRecord:
        ends_s = self._parts.clock.now_s() + self._left_s
        return self._trials.make(TrialSpec(values=values, purpose=Purpose.TAKE_BACK, ends_s=ends_s))


def _likely(ratio: Ratio) -> tuple[float, float]:
    """Return ln ratio minus and plus one standard error."""
    ln, error = math.log(ratio.ratio), math.log(ratio.high / ratio.low) / 4.0
    return ln - error, ln + error


def _predicted_gains(values: Values, model: Model) -> dict[str, float]:
    """Return the predicted gain from each change, in ln score; infinite if the point may fail without it."""
    paths, why_not = list(model.space.changes(values)), model.why_not()
    points = [without_changes(values, [path], model.space) for path in paths]
    whole, *others = model.predicted([values, *points])
    return {
        path: whole - other if why_not(point) is None else math.inf
        for path, point, other in zip(paths, points, others, strict=True)
    }
