"""Validator: trains a confirmed point, and today's config before it, for as long as a real training shows itself."""

from collections.abc import Callable

from autotune.durations import format_duration
from autotune.records import Purpose, TrialRecord, Validation, Values
from autotune.results import SearchResult
from autotune.search.narrator import Narrator
from autotune.search.parts import SearchParts
from autotune.search.schedule import CAUTION, STOPPING_S, expected_start_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from autotune.search.validation import ValidationBasis, findings_alone, judge_validation
from autotune.trial.execution import Execution


class Validator:
    """Validator of the points that a search has confirmed.

    Args:
        parts: What the search works on and with.
        state: What the search knows.
        trials: Makes the trials.
        narrator: Told of the phase.
        longest_s: Longest training of each validation trial.

    Attributes:
        has_broken: True if a point broke: the next is no answer before it is validated.
    """

    def __init__(
        self, parts: SearchParts, state: SearchState, trials: TrialMaker, narrator: Narrator, *, longest_s: float
    ) -> None:
        self._parts = parts
        self._state = state
        self._trials = trials
        self._narrator = narrator
        self._longest_s = longest_s
        self._baseline: Execution | None = None
        self.has_broken = False

    @property
    def needed_s(self) -> float:
        """Time that the next validation takes at most: of a point, and of today's config before the first."""
        trials = 1 if self._baseline else 2
        return trials * (self._longest_s + CAUTION * (expected_start_s(self._state.trials) + STOPPING_S))

    def validate(self, result: SearchResult) -> bool:
        """Train the best point of an answer, and today's config before the first.

        Args:
            result: The answer so far: better.

        Returns:
            Whether that is the answer: True unless the point broke.
        """
        assert result.best is not None, "what is better has values"
        assert result.speedup is not None, "what is better was confirmed"
        left_s = self._parts.budget.left_s()
        if left_s < self.needed_s:
            self._give_up(f"{format_duration(max(0.0, left_s))} is left, and it takes {format_duration(self.needed_s)}")
            return True
        self._narrator.tell_phase("validating", f"training for up to {format_duration(self._longest_s)} each")
        if self._baseline is None:
            self._baseline = self._train_baseline()
        if self._baseline is None:
            self._give_up("the training of today's config was cut short")
            return True
        record = self._train(result.best.values, self._baseline, speedup=result.speedup.ratio)
        if record.validation is None:
            self._give_up(f"its training was cut short: {record.ending.value}")
        broke = record.validation is not None and bool(record.validation.broke)
        self.has_broken |= broke
        return not broke

    def _train_baseline(self) -> Execution | None:
        """Train today's config; None if that was cut short."""
        seen: list[Execution] = []

        def note(done: Execution) -> Validation | None:
            seen.append(done)
            return findings_alone(done)

        record = self._trials.make_once(self._planned(self._parts.problem.space.baseline, note))
        return seen[0] if record.validation else None

    def _train(self, values: Values, baseline: Execution, *, speedup: float) -> TrialRecord:
        """Train a confirmed point."""
        basis = ValidationBasis(
            baseline=baseline, speedup=speedup, sd=self._state.sd, machine=self._parts.problem.machine
        )
        return self._trials.make_once(self._planned(values, lambda done: judge_validation(done, basis)))

    def _planned(self, values: Values, judge: Callable[[Execution], Validation | None]) -> PlannedTrial:
        return PlannedTrial(values=values, purpose=Purpose.VALIDATE, validate_s=self._longest_s, judge=judge)

    def _give_up(self, why: str) -> None:
        self._narrator.tell_phase("ending", f"the answer is not validated: {why}")
