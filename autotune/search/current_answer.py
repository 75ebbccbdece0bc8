"""Current answer of a study in a search, the points that are confirmed beside others, and the best point so far."""

from autotune.events import IncumbentChanged
from autotune.measure.score import LEAST_PAIRS
from autotune.records import Values
from autotune.search.confirm import Candidate, ConfirmationBasis
from autotune.search.model import Model
from autotune.search.problem import Problem
from autotune.search.schedule import MOST_FOR_CONFIRMING, expected_trial_s, verdict_s
from autotune.search.trials import SearchTrials
from autotune.search.windows import Windows
from autotune.search.worth import taken_back
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.study.answer import gave_no_numbers, standing_answer
from autotune.study.gpu_pool import pooled_gpus

_FOR_ONE_ANSWER = 0.05
"""What the best that leaves the training alone may lose, in ln score, for being a part of the whole answer."""


class CurrentAnswer:
    """Current answer of the study, which whatever is confirmed has to beat.

    Attributes:
        standing: The answer of the study when this search began; None without one.
    """

    def __init__(self, problem: Problem, trials: SearchTrials, model: Model, windows: Windows, budget_s: float) -> None:
        self._problem = problem
        self._trials = trials
        self._model = model
        self._windows = windows
        self._budget_s = budget_s
        self.standing = standing_answer(trials.of_study(), problem.objective, excluded=problem.excluded)

    def contender(self) -> Values | None:
        """Return the standing answer, which whatever is confirmed has to beat; None where it is not to be tried.

        It is not where it is today's config, is no point of this space, or has failed in this search.
        """
        if self.standing is None or self.left_out:
            return None
        point, values = self.standing.point, self.standing.trial.values
        is_out = point == self._trials.baseline_point or self._model.broke(values)
        return None if is_out or gave_no_numbers(point, self._trials.own) else values

    def contender_alone(self) -> list[Candidate]:
        """Return the standing answer as what is to be confirmed, where nothing seems to be better than today's."""
        values = self.contender()
        known = self._model.observation(values) if values else None
        if known is None:
            return []
        return [Candidate(observation=known, gain=0.0, speed_gain=None, speed_sd=self._model.sd)]

    def is_standing(self, candidate: Candidate) -> bool:
        return (
            self.standing is not None and self._problem.space.name(candidate.observation.values) == self.standing.point
        )

    @property
    def left_out(self) -> str | None:
        """Point of the standing answer, where the space that is searched does not have it; None else."""
        return self._where_not_in(self._problem.space)

    @property
    def outside(self) -> str | None:
        """Point of the standing answer, where the config's own domains do not have it any more; None else."""
        return self._where_not_in(self._problem.whole_space or self._problem.space)

    def _where_not_in(self, space: Space) -> str | None:
        standing = self.standing
        return None if standing is None or space.is_named(standing.point, standing.trial.values) else standing.point

    def confirmation_basis(self) -> ConfirmationBasis:
        """Return the facts that the size of a confirmation follows from."""
        baseline = self._trials.baseline_measurements()
        return ConfirmationBasis(
            trials=tuple(self._trials.own),
            baseline=self._trials.baseline_point,
            sd=self._model.sd,
            usual_window_s=self._windows.usual().length_s,
            wished_window_s=verdict_s(pooled_gpus(baseline, None)),
            budget_s=self._budget_s,
            third=self._third(),
        )

    def _third(self) -> str | None:
        """Return the point that runs in the pairs of what is best now, besides that and today's; None for none."""
        best, contender = next(iter(self._model.better()), None), self.contender()
        if contender is not None:
            return None if best is not None and self.is_standing(best) else self._problem.space.name(contender)
        alike = self.same_training(best) if best is not None else None
        return None if alike is None else self._problem.space.name(alike)

    def same_training(self, candidate: Candidate) -> Values | None:
        """Return what is confirmed beside a point that changes the training: that without what changes it.

        Then the pairs tell what both parts of it are worth. The best one measured, where that is believed to be better
        by more than `_FOR_ONE_ANSWER`; None where the point does not change the training, nothing else is better than
        today's, or there is no time for it.
        """
        values, space = candidate.observation.values, self._model.space
        changing = [knob.path for knob in space.knobs if knob.label is not Label.SAME_TRAINING]
        without = taken_back(values, changing, space)
        if space.is_same_training(values) or self.contender() is not None:
            return None
        if 3 * LEAST_PAIRS * expected_trial_s(self._trials.own) > MOST_FOR_CONFIRMING * self._budget_s:
            return None  # there is no time for a third one
        measured = (one.observation.values for one in self._model.better())
        best = next((one for one in measured if space.is_same_training(one)), None)
        points = [point for point in (without, best) if point and space.changes(point)]
        points = [point for point in points if self._model.why_not()(point) is None]
        if not points:
            return None
        believed = self._model.predicted(points)
        good = (point for point, one in zip(points, believed, strict=True) if one > max(believed) - _FOR_ONE_ANSWER)
        chosen = next(good)
        return chosen if max(believed) > self._model.predicted([space.baseline])[0] else None


class Incumbent:
    """Best point of a search so far, as its user is shown it."""

    def __init__(self, *, by_utilization: bool) -> None:
        self._by_utilization = by_utilization
        self._name: str | None = None
        self._least = 1.0
        self._found_at: int | None = None

    def begin_with(self, name: str, speedup: float) -> None:
        """Begin with the study's current answer: only what is faster takes its place."""
        self._name, self._least = name, max(1.0, speedup)

    def update(self, model: Model, trials: SearchTrials) -> IncumbentChanged | None:
        """Return that another point is best now; None where none is."""
        better = model.better()
        if not better or better[0].observation.name == self._name:
            return None
        best = better[0].observation
        speedup = trials.speedup([trial for trial in trials.own if trial.point == best.name])
        # The model may still believe in a point whose own trials were slow: no news for the user.
        if speedup is None or not (speedup > self._least or self._by_utilization):
            return None
        self._name, self._least, self._found_at = best.name, 1.0, len(trials.own)
        return IncumbentChanged(values=best.values, changes=model.space.changes(best.values), speedup=speedup)

    def trials_since(self, trials: int) -> int:
        """Return how many of the trials came after it; 0 while this search has found none."""
        return 0 if self._found_at is None else trials - self._found_at
