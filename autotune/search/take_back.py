"""Taking back: the finalist without the changes that are not worth it.

What the model of the search hardly believes in is screened: trials of the finalist with half of these changes taken
back, another half each time, so that each trial tells of all of them (a two-level design; Plackett and Burman, "The
design of optimum multifactorial experiments", Biometrika 33, 1946). The others are taken back one at a time, least
likely first (ablation; Fawcett and Hoos, "Analysing differences between algorithm configurations through ablation", J.
Heuristics 22, 2016). What is not likely to be worth `LEAST_WORTH` then goes, unless it promises more than trials that
differ by 8 % can show: of measured systems whose options are worth a few percent each, an answer that has only what is
shown loses 1.5 % more speed (`python -m scripts.bench tables`, 120 trials).
"""

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from autotune.clock import format_duration
from autotune.records import Purpose, Ratio, TrialRecord, Values
from autotune.search.parts import SearchParts
from autotune.search.schedule import expected_trial_s
from autotune.search.state import SearchState
from autotune.search.trial_maker import SearchStage, TrialMaker
from autotune.search.worth import TakenBack, taken_back
from autotune.space.knob import Label
from autotune.study.answer import gave_no_numbers
from autotune.study.noise import trial_noise
from autotune.trial.execution import TrialSpec

LEAST_WORTH = 1.01
"""Speed over that of the point without a change, from which on the change is worth it."""

_MOST_OF_THE_BUDGET = 0.3
_DOUBTFUL = math.log(1.15)  # what the model believes of it, up to which a change is screened with others
_LEAST_OF_TRAINING = 1.05
_PROMISING = 1.04  # over what is the least
_MOST_SCREENS = 3
_LEAST_TRIALS, _MOST_TRIALS = 2, 8  # of a point, while one change is taken back


class TakeBack(SearchStage):
    """Takes the changes of a finalist back."""

    def __init__(self, parts: SearchParts, state: SearchState, trials: TrialMaker) -> None:
        super().__init__(parts, state, trials)
        self._rng = random.Random(parts.options.seed)
        self._kept_s = 0.0

    def needed_s(self) -> float:
        """Return the time that it takes to judge the changes of the best point, at a bearable share of the budget."""
        better = self._state.model.better()
        changes = len(self._state.model.space.changes(better[0].observation.values)) if better else 0
        if changes < 2 or self._parts.problem.objective.by_utilization or self._state.answer.is_standing(better[0]):
            return 0.0
        # as many as show a change that is worth 10 %, at two standard errors
        trials = 2.0 + changes * max(2.0, 2.0 * (2.0 * self._state.model.sd / math.log(1.1)) ** 2)
        return min(trials * expected_trial_s(self._state.trials.own), _MOST_OF_THE_BUDGET * self._parts.budget.budget_s)

    def simplified(self, values: Values, *, kept_s: float) -> Values:
        """Return a point without the changes that are not shown to be worth it, as far as there is time.

        Args:
            kept_s: Time in seconds that has to be left of the budget.
        """
        self._kept_s = kept_s + expected_trial_s(self._state.trials.own)  # for what is left, if it is a new point
        believed = self._state.model.believed_worth(values)
        paths = sorted(believed, key=believed.__getitem__)
        if len(self._state.model.space.changes(values)) < 2 or not self._fits(2):
            return values  # the worth of one change is that of all
        left = format_duration(self._left_s)
        self._events.change_phase("taking back", f"which of {len(paths)} changes are worth it, for {left} at most")
        doubtful = [path for path in paths if believed[path] < _DOUBTFUL]
        values = self._screened(values, doubtful, others=len(paths) - len(doubtful))
        for place, path in enumerate(paths[len(doubtful) :], start=len(doubtful)):
            values = self._ablated(values, path, others=len(paths) - place - 1)
        self._kept_s = kept_s
        if not self._state.model.observation(values):
            self._try(values)
        return values

    def _screened(self, values: Values, paths: Sequence[str], *, others: int) -> Values:
        """Return a point without those of some changes that a screen does not show to be worth it."""
        for screen in range(_MOST_SCREENS):
            rows = list(self._screen(values, paths))
            if not rows or not self._fits(len(rows) + (2 * others if screen else others)):
                break
            for row in rows:
                if not self._state.model.broke(row):
                    self._try(row)
            if all(self._is_told(path, values) for path in paths):
                break
        without = taken_back(values, [path for path in paths if self._goes(path, values)], self._state.model.space)
        return without if self._state.model.space.changes(without) else values

    def _screen(self, values: Values, paths: Sequence[str]) -> Iterator[Values]:
        """Yield the points of a screen: each change is in half of them, and in half of those with any other."""
        if not paths:
            return
        signs = np.array([[1]])
        while len(signs) <= len(paths):
            signs = np.kron(np.array([[1, 1], [1, -1]]), signs)
        columns = self._rng.sample(range(1, len(signs)), len(paths))
        for row in self._rng.sample(range(len(signs)), len(signs)):
            taken = [path for path, column in zip(paths, columns, strict=True) if signs[row, column] < 0]
            yield taken_back(values, taken, self._state.model.space)

    def _ablated(self, values: Values, path: str, *, others: int) -> Values:
        """Return a point without a change, unless that is shown to be worth it."""
        without = taken_back(values, [path], self._state.model.space)
        point = self._parts.problem.space.name(without)
        is_known = self._state.model.broke(without) or gave_no_numbers(point, self._state.trials.own)
        if is_known or not self._state.model.space.changes(without):
            return values
        for _ in range(2 * _MOST_TRIALS):
            made, made_without = self._made(values), self._made(without)
            if not self._fits(1 + others) or min(made, made_without) >= _MOST_TRIALS:
                break
            is_compared = made >= max(_LEAST_TRIALS, made_without)  # with it all others are compared, too
            if not self._try(without if is_compared else values).comparable:
                return values  # it does not work without
            if self._is_told(path, values):
                break
        return without if self._goes(path, values) else values

    def _goes(self, path: str, values: Values) -> bool:
        """Return whether a change is not likely to be worth it, nor promises so much that doubt is in its favour."""
        ratio = self._worth(path, values)
        least = self._least(path)
        if ratio is None or ratio.ratio > _PROMISING * least:
            return False
        return _likely(ratio)[0] < math.log(least)

    def _is_told(self, path: str, values: Values) -> bool:
        """Return whether it is known what a change is worth: enough, or that it will hardly be shown."""
        ratio = self._worth(path, values)
        if ratio is None:
            return False
        least = self._least(path)
        is_shown = ratio.ratio > least and ratio.low > 1.0
        return is_shown or _likely(ratio)[1] < math.log(least)

    def _least(self, path: str) -> float:
        knob = next(knob for knob in self._state.model.space.knobs if knob.path == path)
        # what changes the training has to be worth it clearly
        return _LEAST_OF_TRAINING if knob.label in (Label.BATCH, Label.PRECISION) else LEAST_WORTH

    def _worth(self, path: str, values: Values) -> Ratio | None:
        noise = trial_noise(self._state.trials.own, self._parts.search, self._parts.problem.objective)
        known = TakenBack(self._state.trials.own, self._state.model.space.baseline, values, noise)
        return known.ratio(path) if path in known else None

    def _made(self, values: Values) -> int:
        point = self._parts.problem.space.name(values)
        return sum(trial.point == point and trial.purpose is Purpose.TAKE_BACK for trial in self._state.trials.own)

    def _fits(self, trials: int) -> bool:
        return not self._trials.gpu_lost and trials * expected_trial_s(self._state.trials.own) < self._left_s

    @property
    def _left_s(self) -> float:
        return self._parts.budget.left_s() - self._kept_s

    def _try(self, values: Values) -> TrialRecord:
        ends_s = self._parts.clock.now_s() + self._left_s
        return self._trials.make(TrialSpec(values=values, purpose=Purpose.TAKE_BACK, ends_s=ends_s))


def _likely(ratio: Ratio) -> tuple[float, float]:
    """Return the ln ratio less one standard error, and with it."""
    ln, error = math.log(ratio.ratio), math.log(ratio.high / ratio.low) / 4.0
    return ln - error, ln + error
