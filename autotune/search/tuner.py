"""Search from its first trial to its answer: the stages in `NEXT`, run by `Tuner.run`."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from autotune.clock import format_duration
from autotune.errors import AutotuneError, CodeChanged, StudyError, TrialError
from autotune.events import IncumbentChanged, SearchEnded, SearchStarted
from autotune.measure.score import LEAST_PAIRS
from autotune.process import expected
from autotune.records import CONFIRMED, UNCHANGED, Ending, Purpose, SearchResult, TrialRecord, Verdict
from autotune.search.answer import answer_of_search, answer_of_study
from autotune.search.explore import Explorer
from autotune.search.finalists import Finalists
from autotune.search.other_machines import LeftOut, OtherMachines
from autotune.search.parts import SearchParts
from autotune.search.race import Racer
from autotune.search.schedule import CAUTION, MOST_FOR_CONFIRMING, ExploringEnd, Outcome, smallest_budget_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import Failed, TrialMaker
from autotune.search.validation import Validator
from autotune.search.worth import rate
from autotune.trial.outcome import EXPLANATIONS, failure_text


class Stage(Enum):
    """Stage of a search."""

    MEASURE_BASELINE = auto()
    EXPLORE = auto()
    SIMPLIFY = auto()
    CONFIRM = auto()
    VALIDATE = auto()
    RACE = auto()
    ANSWER = auto()


NEXT: Mapping[tuple[Stage, Outcome], Stage] = {
    (Stage.MEASURE_BASELINE, Outcome.DONE): Stage.EXPLORE,
    (Stage.EXPLORE, Outcome.DONE): Stage.SIMPLIFY,
    (Stage.SIMPLIFY, Outcome.DONE): Stage.CONFIRM,
    (Stage.CONFIRM, Outcome.MEASURED): Stage.VALIDATE,
    (Stage.CONFIRM, Outcome.FAR_SLOWER): Stage.EXPLORE,  # the next best has its turn
    (Stage.CONFIRM, Outcome.FAILED): Stage.EXPLORE,
    (Stage.CONFIRM, Outcome.TIME_FREED): Stage.EXPLORE,
    (Stage.CONFIRM, Outcome.ENDED): Stage.RACE,
    (Stage.VALIDATE, Outcome.HELD): Stage.RACE,
    (Stage.VALIDATE, Outcome.BROKE): Stage.EXPLORE,
    (Stage.VALIDATE, Outcome.UNCONFIRMED): Stage.EXPLORE,
    (Stage.RACE, Outcome.DONE): Stage.ANSWER,
}
"""Next stage, by stage and outcome."""


class Tuner:
    """One search.

    Attributes:
        ended_by: Error that ended the search early.
        left_because: Why this machine left the study.
    """

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts
        self._events = parts.events
        self.state = state = SearchState(parts)
        self._trials = trials = TrialMaker(parts, state)
        self._results = Results(parts, state)
        self._others = others = OtherMachines(parts, state)
        self._validator = Validator(parts, state, trials)
        self._racer = Racer(parts, state, trials)
        self._finalists = Finalists(parts, state, trials, others, self._validator, self._racer)
        self.explorer = Explorer(parts, state, trials, others, self._finalists)
        self.ended_by: AutotuneError | None = None
        self.left_because = ""

    def run(self) -> SearchResult:
        """Explore until the budget is used or nothing pays off, then confirm.

        After an early end (`ended_by`), answers from the trials so far.

        Raises:
            AutotuneError: All trials failed; mostly a `TrialError`.
            CodeChanged: The trainer's code was edited meanwhile.
        """
        stages: Mapping[Stage, Callable[[], Outcome]] = {
            Stage.MEASURE_BASELINE: self.explorer.measure_baseline,
            Stage.EXPLORE: self.explorer.explore,
            Stage.SIMPLIFY: self._finalists.simplify,
            Stage.CONFIRM: self._confirm,
            Stage.VALIDATE: self._validate,
            Stage.RACE: self._race,
        }
        self._publish_start()
        stage = Stage.MEASURE_BASELINE
        try:
            while stage is not Stage.ANSWER:
                stage = NEXT[stage, stages[stage]()]
            self._others.wait_for_their_confirmations()
        except LeftOut as left:
            self.left_because = str(left)
            self._events.change_phase("ending", f"this machine leaves: {left}")
            self._others.wait_for_their_confirmations()
        except (BrokenPipeError, CodeChanged):
            raise  # no reader is left; or the measurements are of outdated code
        except (AutotuneError, OSError, MemoryError, RuntimeError) as error:
            self.ended_by = expected(error)
            if self.ended_by is None:
                raise
        return self._answer()

    def _confirm(self) -> Outcome:
        assert self.explorer.ended is not None, "exploring comes before"
        return self._finalists.confirm(self.explorer.ended)

    def _validate(self) -> Outcome:
        """Validate a confirmed point if requested; without one, decide whether to explore further."""
        confirmed, ended = self._results.confirmed(), self.explorer.ended
        if confirmed is not None and self._validator.breaks(confirmed):
            return Outcome.BROKE
        has_ended_early = ended is not None and ended.kind is ExploringEnd.SETTLED
        if not has_ended_early or self.explorer.has_resumed:
            return Outcome.HELD
        if confirmed is None:
            self.explorer.has_resumed = True
            return Outcome.UNCONFIRMED
        used, budget = map(format_duration, (self._parts.budget.elapsed_s(), self._parts.budget.budget_s))
        self._events.remark(f"Confirmed after {used} of {budget}; --exhaust uses the rest to search on.")
        return Outcome.HELD

    def _race(self) -> Outcome:
        confirmed = self._results.confirmed()
        if confirmed is not None and confirmed.best and not self._trials.gpu_lost:
            self._racer.race(confirmed.best.values)
        return Outcome.DONE

    @property
    def failures(self) -> Mapping[Ending, Failed]:
        """First trial of each kind that failed by a fault of the trainer."""
        model, failures = self.state.model, self._trials.failures
        return {how: one for how, one in failures.items() if not model.starts.explain(model.space, one.record)}

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(trial.ending.value for trial in self.state.trials.own)

    def best_trials(self, points: int = 5) -> set[str]:
        """Return the names of the best points' trials, whose folders are kept."""
        trials = self.state.trials
        best = {candidate.observation.name for candidate in self.state.model.better()[:points]}
        names = best | {trials.baseline_point}
        return {self._parts.trial_name(trial.number) for trial in trials.own if trial.point in names}

    def answer_so_far(self) -> SearchResult | None:
        return self._results.so_far()

    def _publish_start(self) -> None:
        parts, problem, state = self._parts, self._parts.problem, self.state
        self._events.publish(
            SearchStarted(
                search=parts.search,
                study=parts.study.name,
                config=str(problem.config_path),
                baseline=problem.space.baseline,
                points=state.model.space.size,
                trials_found=sum(trial.purpose is not Purpose.TRAINING for trial in parts.study.records()),
                budget_s=parts.budget.budget_s,
                measures=problem.measures,
            )
        )
        if state.claims_sd:
            self._events.remark(
                "Earlier claims of this study missed the achieved speed by about "
                f"{100 * math.expm1(state.claims_sd):.0f} % beyond their intervals: those of this search are wider."
            )
        current = self._results.of_study() if state.answer.contender() else None
        if current and current.best and current.speedup and current.best.point != state.trials.baseline_point:
            values, speedup = current.best.values, current.speedup.ratio
            state.targets[0].begin_with(state.model.observed_name(values), speedup)
            changes = problem.space.changes(values)
            self._events.publish(IncumbentChanged(values=values, changes=changes, speedup=speedup))

    def _answer(self) -> SearchResult:
        self._results.rate()
        self.state.findings.check_late_side_effects()
        result = self._results.at_end(self._finalists, why_not_raced=self._racer.why_not, cautions=self._cautions())
        if result is None:
            raise self.ended_by or _no_numbers(self.state.trials.own, self._parts.problem.config_path)
        return result

    def _cautions(self) -> tuple[str, ...]:
        trouble = self._trials.gpu_lost or (self.ended_by and self.ended_by.message)
        lost = (f"The search could not continue: {trouble}.",) if trouble else ()
        left = (f"This machine was excluded: {self.left_because}.",) if self.left_because else ()
        untried, failing = self.state.model.starts.untried(), self.state.model.what_fails()
        return (*lost, *left, *failing, *untried, *self._trials.cautions, *self.state.findings.cautions)


def _no_numbers(trials: Sequence[TrialRecord], config: Path) -> TrialError:
    endings = sorted({trial.ending.value for trial in trials})
    why = f" ({', '.join(endings)})"
    remedy = "The first error of each kind is printed above; fix it and run the same command again."
    if len(endings) == 1:
        why, remedy = f": {failure_text(trials[-1])}", EXPLANATIONS[trials[-1].ending].remedy
    return TrialError(f"none of {len(trials)} trials has a measurement{why}", where=str(config), remedy=remedy)


class Results:
    """Results of one search, recomputed from the record each time."""

    def __init__(self, parts: SearchParts, state: SearchState) -> None:
        self._parts = parts
        self._events = parts.events
        self._problem = parts.problem
        self._state = state

    def of_search(self) -> SearchResult | None:
        records, space = self._state.trials.of_study(), self._state.model.space
        return answer_of_search(self._problem, records, self._parts.search, self._parts.study.ratings, space=space)

    def of_study(self) -> SearchResult | None:
        return answer_of_study(self._problem, self._state.trials.of_study(), self._parts.study.ratings)

    def confirmed(self) -> SearchResult | None:
        """Return the answer of this search's own trials, if confirmed."""
        result = self.of_search()
        return result if result is not None and result.verdict in CONFIRMED else None

    def so_far(self) -> SearchResult | None:
        """Return the study's answer including this search's trials; None before a measurement."""
        own = self.of_search()
        is_alone = own is None or own.verdict is Verdict.NO_BASELINE or self._state.answer.left_out
        result = own if is_alone else self.of_study()
        if result is None or own is None or result.search == own.search:
            return result
        why, then = f"{result.why}; nothing in this search supersedes it", result.baseline
        cautions = own.cautions
        if then is not None and then.point != self._state.trials.baseline_point:
            held = ", ".join(f"{path}: {value}" for path, value in then.values.items())
            cautions += (f"It was confirmed against other values than the config has now: {held}.",)
        return replace(result, why=why, trials=own.trials, outcomes=own.outcomes, cautions=cautions)

    def at_end(self, finalists: Finalists, *, why_not_raced: str, cautions: Sequence[str]) -> SearchResult | None:
        """Return and publish the final answer, with facts only the search knows."""
        result = self.so_far()
        if result and result.verdict in CONFIRMED and result.best and not self._state.answer.left_out:
            trials = self._state.trials.of_study()
            if remark := self._parts.warm_start.of_answer(result.best.values, trials, self._problem.space):
                self._events.remark(remark)
        self._events.publish(
            SearchEnded(
                verdict=result.verdict if result else None,
                trials=len(self._state.trials.own),
                elapsed_s=self._parts.budget.elapsed_s(),
                speedup=result.speedup.ratio if result and result.speedup else None,
                changes={change.path: change.new for change in result.changes} if result else {},
            )
        )
        return result and replace(
            result,
            gain_of_ten_minutes=self._state.model.gain_of_ten_minutes(),
            budget_enough_s=self._budget_enough_s(result, finalists),
            why_not_raced=result.why_not_raced and (why_not_raced or result.why_not_raced),
            cautions=(*result.cautions, *cautions),
        )

    def _budget_enough_s(self, result: SearchResult, finalists: Finalists) -> float | None:
        """Return the budget in which the shortest full confirmation takes its share; None if none would help.

        Twice the present one if pairs were inconclusive; that of a few trials if only the baseline was tried.
        """
        own, budget_s = self._state.trials.own, self._parts.budget.budget_s
        if result.verdict not in UNCHANGED:
            return None
        enough_s = smallest_budget_s(own)
        if budget_s < enough_s and not any(trial.purpose is Purpose.EXPLORE for trial in own):
            return enough_s
        if not (result.candidate or finalists.lacks_time):
            return None
        if (better := self._state.model.better()) and result.speedup is None:
            needed_s = CAUTION * LEAST_PAIRS * finalists.basis().pair_s(better[0]) / MOST_FOR_CONFIRMING
            return max(needed_s, 1.5 * budget_s)
        return 2.0 * budget_s

    def rate(self) -> None:
        """Compute the gain from each change, and store it in the study."""
        if own := self.of_search():
            rating, knobs = rate(own, self._state.trials.of_study(), self._problem.space, self._problem.objective)
            if rating:
                with suppress(StudyError):
                    self._parts.study.keep_rating(own.search, rating)
            if knobs:
                self._events.publish(knobs)
