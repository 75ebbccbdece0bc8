"""Lengths of the measuring windows of a search's trials."""

from dataclasses import replace
from statistics import median

from autotune.clock import format_duration
from autotune.measure.statistics import LEAST_CYCLES, SHORT_STALL, optimal_window_s
from autotune.measure.window import Window, WindowGoal
from autotune.records import Purpose
from autotune.search.model import Model
from autotune.search.problem import Problem
from autotune.search.trials import SearchTrials

_FIRST_LOOK, _MOST_OF_SHORT_BUDGETS = 0.06, 0.08  # of the budget
_LEAST_ON_A_GPU_S = 2.0  # a driver looks a few times a second, and has to see who else is there
_LEAST_FIRST_LOOK_S, _LONGEST_FIRST_LOOK_S = 5.0, 180.0
_MOST_FOR_CYCLES = 0.06  # of the budget for each trial, as far as that is more than `trial.max_s`


class Windows:
    """Windows of a search's trials: as long as the noise of its study makes worthwhile."""

    def __init__(self, problem: Problem, trials: SearchTrials, model: Model, budget_s: float) -> None:
        self._problem = problem
        self._trials = trials
        self._model = model
        self._budget_s = budget_s
        self._within_variances_s: list[float] = []

    def add(self, window: Window) -> None:
        """Add the window of a trial that is compared with others."""
        self._within_variances_s.append(window.within_variance_s())

    def usual(self) -> WindowGoal:
        """Return the window of the next trial: the best use of time at the noise that this study has shown."""
        limits = self._problem.limits
        starts_s = [trial.measurement.first_step_s for trial in self._trials.own if trial.measurement]
        target_s = min(limits.max_s, max(limits.min_s, _LEAST_ON_A_GPU_S if self._problem.machine.gpus else 0.0))
        if starts_s and self._within_variances_s:
            within, between = median(self._within_variances_s), self._model.sd**2
            target_s = optimal_window_s(median(starts_s), within, between, min_s=target_s, max_s=limits.max_s)
        most_s = max(limits.max_s, _MOST_FOR_CYCLES * self._budget_s)
        target_s = max(target_s, min(most_s, LEAST_CYCLES * (self.beat_s or 0.0)))
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s, most_s=most_s)

    @property
    def finalist_look_s(self) -> float:
        """Length of a finalist's first look: what chose it may have been too short to see its stalls."""
        return min(_LEAST_FIRST_LOOK_S, _MOST_OF_SHORT_BUDGETS * self._budget_s)

    def first(self) -> WindowGoal:
        """Return the window of the first look at today's config: long enough to see what comes only now and then."""
        usual = self.usual()
        look_s = min(_LONGEST_FIRST_LOOK_S, max(_FIRST_LOOK * self._budget_s, self.finalist_look_s))
        return replace(usual, target_s=max(usual.length_s, look_s), most_s=max(usual.most_s, 2.0 * look_s))

    def why_longer(self) -> str:
        """Return why trials are longer than even steps would need, a sentence; empty if they are not."""
        beat_s, goal = self.beat_s, self.usual()
        if beat_s is None or LEAST_CYCLES * beat_s <= goal.min_s:
            return ""
        every, length = format_duration(beat_s), format_duration(goal.length_s)
        if goal.length_s < LEAST_CYCLES * beat_s:
            needed = format_duration(LEAST_CYCLES * beat_s / _MOST_FOR_CYCLES)
            return (
                f"Training stops and goes every {every}: {length}, all that a trial measures within this budget, hold "
                f"less than {LEAST_CYCLES} of that, and intervals are as wide as it calls for; --budget {needed} is "
                "enough."
            )
        return f"Training stops and goes every {every}: trials measure for {length}, for {LEAST_CYCLES} of that."

    @property
    def beat_s(self) -> float | None:
        """Usual time of the cycles of training, today's or a finalist's if it is longer, as far as they were seen.

        None also where stalls take so little that one too many is noise like other noise.
        """
        beats_s: dict[str, list[float]] = {}
        looked = (trial for trial in self._trials.own if trial.purpose in (Purpose.BASELINE, Purpose.CONFIRM))
        for trial in looked:
            measured = trial.comparable
            if measured and measured.beat_s is not None and (measured.stall_fraction or 0.0) > SHORT_STALL:
                beats_s.setdefault(trial.point, []).append(measured.beat_s)
        return max(map(median, beats_s.values()), default=None)
