"""One search, from its first process to its answer: the stages that it goes through, and which comes after which.

Read `NEXT` and `Tuner.run` first; one trial is `TrialMaker.make_once`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from autotune.errors import AutotuneError, CodeChanged, TrialError
from autotune.events import IncumbentChanged, SearchStarted
from autotune.limits import expected
from autotune.records import Ending, SearchResult, TrialRecord
from autotune.search.baseline import Baseline
from autotune.search.explore import Explorer
from autotune.search.finalists import Finalists
from autotune.search.findings import Findings
from autotune.search.other_machines import LeftOut, OtherMachines
from autotune.search.parts import Outcome, SearchParts
from autotune.search.race import Racer
from autotune.search.result import Results
from autotune.search.schedule import ExploringEnd
from autotune.search.state import SearchState
from autotune.search.trial_maker import Failed, TrialMaker
from autotune.search.validation import Validator
from autotune.trial.explanations import EXPLANATIONS, failure_text


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
    (Stage.CONFIRM, Outcome.TIME_FREED): Stage.EXPLORE,
    (Stage.CONFIRM, Outcome.ENDED): Stage.RACE,
    (Stage.VALIDATE, Outcome.HELD): Stage.RACE,
    (Stage.VALIDATE, Outcome.BROKE): Stage.EXPLORE,
    (Stage.VALIDATE, Outcome.UNCONFIRMED): Stage.EXPLORE,
    (Stage.RACE, Outcome.DONE): Stage.ANSWER,
}
"""Stage and what it came to → the next stage."""


class Tuner:
    """One search.

    Attributes:
        ended_by: What ended the search before its time; None if nothing did.
        left_because: Reason for which this machine has left the study to others; empty if it did not.
    """

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts
        self._events = parts.events
        self._findings = Findings(parts.problem, parts.clock, parts.events.remark)
        self.state = state = SearchState(
            parts.problem,
            parts.study,
            self._findings,
            sampler=parts.options.sampler,
            seed=parts.options.seed,
            budget_s=parts.budget.budget_s,
            warm_start=parts.warm_start,
        )
        self._trials = trials = TrialMaker(parts, state, self._findings)
        self._results = Results(parts, state)
        self._others = others = OtherMachines(parts, state)
        self._validator = Validator(parts, state, trials)
        self._racer = Racer(parts, state, trials)
        self._finalists = Finalists(parts, state, trials, others, self._validator, self._racer)
        self.explorer = Explorer(parts, state, trials, others, self._finalists)
        self.ended_by: AutotuneError | None = None
        self.left_because = ""

    def run(self) -> SearchResult:
        """Search until the budget is used or nothing left can pay, and confirm.

        What ends it before that is in `ended_by`; the answer is made of what was measured until then.

        Raises:
            AutotuneError: No trial gave numbers to answer with; most often a `TrialError`.
            CodeChanged: The trainer's code was edited meanwhile.
            KeyboardInterrupt: ^C; everything finished so far is in the record.
        """
        baseline = Baseline(self._parts, self.state, self._trials, self._others, self.explorer)
        stages: Mapping[Stage, Callable[[], Outcome]] = {
            Stage.MEASURE_BASELINE: baseline.measure,
            Stage.EXPLORE: self.explorer.explore,
            Stage.SIMPLIFY: self._finalists.simplify,
            Stage.CONFIRM: self._confirm,
            Stage.VALIDATE: self._validate,
            Stage.RACE: self._race,
        }
        self._tell_start()
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
            raise  # nobody listens any more; what was measured says nothing of the trainer as it is now
        except (AutotuneError, OSError, MemoryError, RuntimeError) as error:
            self.ended_by = expected(error)
            if self.ended_by is None:
                raise
        return self._answer()

    def _confirm(self) -> Outcome:
        assert self.explorer.ended is not None, "exploring comes before"
        return self._finalists.confirm(self.explorer.ended)

    def _validate(self) -> Outcome:
        """Validate what was confirmed, if that was asked for; if nothing was, see whether to explore further."""
        confirmed, ended = self._results.confirmed(), self.explorer.ended
        if confirmed is not None and self._validator.breaks(confirmed):
            return Outcome.BROKE
        has_ended_early = ended is not None and ended.kind is ExploringEnd.SETTLED
        if not has_ended_early or self.explorer.has_resumed:
            return Outcome.HELD
        if confirmed is None:
            self.explorer.has_resumed = True
            return Outcome.UNCONFIRMED
        self._results.tell_when_sure()
        return Outcome.HELD

    def _race(self) -> Outcome:
        """Race the point that is the answer, if that was asked for or is called for."""
        confirmed = self._results.confirmed()
        if confirmed is not None and confirmed.best and not self._trials.gpu_lost:
            self._racer.race(confirmed.best.values)
        return Outcome.DONE

    @property
    def failures(self) -> Mapping[Ending, Failed]:
        """The first trial of each kind that gave no numbers by a fault of the trainer's."""
        return self._trials.failures

    @property
    def outcomes(self) -> Counter[str]:
        """Number of trials of this search by ending."""
        return Counter(trial.ending.value for trial in self.state.trials.own)

    def best_trials(self, points: int = 5) -> set[str]:
        """Return the names of the trials of the best points, whose folders are worth keeping."""
        trials = self.state.trials
        best = {candidate.observation.name for candidate in self.state.model.better()[:points]}
        names = best | {trials.baseline_point}
        return {self._parts.trial_name(trial.number) for trial in trials.own if trial.point in names}

    def answer_so_far(self) -> SearchResult | None:
        """Return the answer of the study with what this search has measured so far; None without numbers of it."""
        return self._results.so_far()

    def _tell_start(self) -> None:
        parts, problem, state = self._parts, self._parts.problem, self.state
        self._events.publish(
            SearchStarted(
                search=parts.search,
                study=parts.study.name,
                config=str(problem.config_path),
                baseline=problem.space.baseline,
                points=state.model.space.size,
                trials_found=len(parts.study.records()),
                budget_s=parts.budget.budget_s,
                measures=problem.measures,
            )
        )
        stands = self._results.of_study() if state.answer.contender() else None
        if stands and stands.best and stands.speedup and stands.best.point != state.trials.baseline_point:
            values, speedup = stands.best.values, stands.speedup.ratio
            state.incumbent.begin_with(state.model.observed_name(values), speedup)
            changes = problem.space.changes(values)
            self._events.publish(IncumbentChanged(values=values, changes=changes, speedup=speedup))

    def _answer(self) -> SearchResult:
        """Sum up what was measured.

        Raises:
            AutotuneError: No trial gave numbers; what ended the search, if something did.
        """
        self._results.rate()
        self._findings.look_back()
        result = self._results.at_end(self._finalists, why_not_raced=self._racer.why_not, cautions=self._cautions())
        if result is None:
            raise self.ended_by or _no_numbers(self.state.trials.own, self._parts.problem.config_path)
        return result

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
        said, remedy = f": {failure_text(trials[-1])}", EXPLANATIONS[trials[-1].ending].remedy
    return TrialError(f"none of {len(trials)} trials gave numbers{said}", where=str(config), remedy=remedy)
