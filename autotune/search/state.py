"""State of one search."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from autotune.clock import format_duration
from autotune.events import IncumbentChanged
from autotune.measure.cycles import Lengths, cycle_length
from autotune.measure.score import FEWEST_PAIRS
from autotune.measure.statistics import LEAST_CYCLES, SHORT_STALL, lacks_cycles, optimal_window_s
from autotune.measure.window import Window, WindowGoal
from autotune.records import DataEffect, DataFinding, Purpose, Scalar, TrialRecord, Values
from autotune.sampler.observations import of_space
from autotune.search.confirm import Candidate, ConfirmationBasis
from autotune.search.findings import DataCheck, Findings
from autotune.search.model import Model, explores
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.schedule import MOST_FOR_CONFIRMING, EndOfExploring, expected_trial_s, verdict_s
from autotune.search.trials import SearchTrials
from autotune.space.knob import Label
from autotune.space.space import Space, same_training
from autotune.study.achieved import claims_sd
from autotune.study.answer import answers_by_search, has_only_failed
from autotune.study.data_effects import labelled
from autotune.study.gpu_pool import pooled_gpus
from autotune.trial.execution import Execution


class SearchState:
    """State of one search, updated by each trial."""

    def __init__(self, parts: SearchParts) -> None:
        problem, budget_s = parts.problem, parts.budget.budget_s
        self.findings = Findings(problem, parts.clock, parts.events.remark)
        self.trials = trials = SearchTrials(problem, parts.study)
        self.findings.recall(of_space(trials.of_study(), problem.space), problem.space)
        self.model = Model(parts, self.findings, trials)
        self.data = DataCheck(trials.baseline_point)
        self._blamed: set[tuple[str, Scalar]] = set()  # values that train on different data
        self.windows = Windows(problem, trials, self.model, budget_s)
        self.answer = CurrentAnswer(problem, trials, self.model, self.windows, budget_s)
        self.targets = self._targets(parts)
        self.claims_sd = claims_sd(trials.of_study(), problem.objective)  # as of the start of the search

    def learn(self, record: TrialRecord, done: Execution) -> None:
        self.data.learn(record, done.data, done.losses)
        if record.data is not None and record.data.effect is DataEffect.DIFFERENT:
            self._report_data_changes(record.number, record.data)
        if done.window is not None and record.comparable and explores(record):
            self.windows.add(record, done.window)
        self.model.learn(record, done)

    def _report_data_changes(self, number: int, shown: DataFinding) -> None:
        found = self.labelled(self.model.space).relabelled
        blamed = {one for one, label in found.items() if label is Label.DATA} - self._blamed
        self._blamed |= blamed
        if blamed:
            values = ", ".join(f"{path}: {value}" for path, value in sorted(blamed, key=str))
            self.findings.remark(f"{values} trains on different data, as trial {number} shows: {shown.evidence}")

    def labelled(self, space: Space) -> Space:
        """Return a space relabelled by the data of the study's trials."""
        return labelled(space, self.trials.of_study())

    @property
    def scratch_loss(self) -> float | None:
        """First loss of the baseline, if known."""
        return self.findings.baseline_losses.first if self.findings.baseline_losses else None

    def _targets(self, parts: SearchParts) -> "Sequence[Target]":
        """Return the targets; a user's sampler has only one."""
        space, by_utilization = parts.problem.space, parts.problem.objective.by_utilization
        has_one = parts.options.sampler is not None or same_training(space).size == space.size
        kinds = (False,) if has_one else (False, True)
        return [Target(self, is_same_training=one, by_utilization=by_utilization) for one in kinds]


_FIRST_LOOK, _MOST_OF_SHORT_BUDGETS = 0.06, 0.08  # of the budget
_CYCLE_TOLERANCE = 0.05  # largest relative difference of two cycles of the same length
_TO_LEARN_CYCLE = 3.5  # cycles, which contain two whole ones from any start
_TO_SEE_CYCLES = LEAST_CYCLES + 1.5  # which contain `LEAST_CYCLES` whole ones of varying length
_GROWTH = 1.15  # of the step time over the first trial, from which steps get slower
_SPARE = 1.05  # on the steps of the fastest trial, so that each trial measures for long enough
_LEAST_SD = 0.01  # of ln speed between trials
_LEAST_ON_A_GPU_S = 2.0  # for the driver, with a few samples per second, to see other processes
_LEAST_FIRST_LOOK_S, _LONGEST_FIRST_LOOK_S = 5.0, 180.0
_MOST_FOR_CYCLES = 0.06  # of the budget for each trial, if that is more than `trial.max_s`


class Windows:
    """Measuring windows of a search's trials, with lengths chosen by the study's noise.

    Attributes:
        until_step: Last step to measure at each point, if steps get slower.
    """

    def __init__(self, problem: Problem, trials: SearchTrials, model: Model, budget_s: float) -> None:
        self._problem = problem
        self._trials = trials
        self._model = model
        self._budget_s = budget_s
        self._within_variances_s: list[float] = []
        self._windows_s: list[float] = []
        self._cycle_lengths: dict[str, list[Lengths]] = {}  # by point
        self.until_step: int | None = None
        self._growth = 1.0

    def add(self, record: TrialRecord, window: Window) -> None:
        if self.until_step is None and record.point == self._trials.baseline_point:
            self._growth = window.growth()
            if self._growth > _GROWTH:
                fitting = int(np.searchsorted(np.cumsum(window.durations_s), self.usual().length_s))
                self.until_step = window.before + max(self._problem.limits.min_steps, fitting)
        if not lacks_cycles(window.cycles, window.speed_error()):
            self._within_variances_s.append(window.within_variance_s())
            self._windows_s.append(window.time_s)
        if window.cycle_lengths is not None:
            self._cycle_lengths.setdefault(record.point, []).append(window.cycle_lengths)

    def usual(self) -> WindowGoal:
        """Return the next trial's window: the best use of time at the known noise."""
        limits = self._problem.limits
        most_s = max(limits.max_s, _MOST_FOR_CYCLES * self._budget_s)
        target_s = max(self._steady_s(), min(most_s, LEAST_CYCLES * (self.cycle_s or 0.0)))
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s, most_s=most_s)

    @property
    def least_s(self) -> float:
        """Shortest useful window; the usual one if training stalls."""
        is_steady = self.cycle_s is None and self.until_step is None
        return self._least_steady_s if is_steady else self.usual().length_s

    @property
    def _least_steady_s(self) -> float:
        limits = self._problem.limits
        return min(limits.max_s, max(limits.min_s, _LEAST_ON_A_GPU_S if self._problem.machine.gpus else 0.0))

    def _steady_s(self) -> float:
        """Return the window for training without stalls."""
        starts_s = [trial.measurement.first_step_s for trial in self._trials.own if trial.measurement]
        least_s, most_s = self._least_steady_s, self._problem.limits.max_s
        if not (starts_s and self._within_variances_s):
            return least_s
        within = median(self._within_variances_s)
        # remaining variance between trials, at least that of `_LEAST_SD`
        between = max(_LEAST_SD**2, self._model.sd**2 - 2.0 * within / median(self._windows_s))
        return optimal_window_s(median(starts_s), within, between, min_s=least_s, max_s=most_s)

    def in_steps(self, goal: WindowGoal, point: str) -> WindowGoal:
        """Return a goal in steps, of whole cycles if they are regular; the same steps for all if they get slower."""
        if (until := self.until_step) is not None:
            return replace(goal, steps=until - until // 4, until_step=until)
        measured = [trial.comparable for trial in self._trials.own if trial.point == point]
        paces_s = [one.window_s / one.steps for one in measured if one is not None]
        step_s, cycle = min(paces_s, default=0.0), self._cycle(point)
        if not paces_s or (cycle is None and goal.most_s > goal.length_s and len(self._longest_cycles(point)) == 1):
            return goal  # long enough to learn the cycle
        is_usual = goal.length_s <= self.usual().length_s
        length_s = self._steady_s() if cycle is not None and is_usual else goal.length_s
        if cycle is None and len(self._longest_cycles(point)):
            length_s = max(length_s, min(goal.most_s, _TO_SEE_CYCLES * (self.cycle_s or 0.0)))
        steps = max(goal.min_steps, math.ceil(_SPARE * length_s / step_s))
        if cycle is not None:
            fitting = int(max(goal.length_s, goal.most_s) / (step_s * cycle))
            cycles = min(max(1, round(steps / cycle)), fitting)
            steps, cycle = (cycles * cycle, cycle) if cycles * cycle >= goal.min_steps else (steps, None)
        return replace(goal, target_s=steps * step_s, steps=steps, cycle=cycle)

    def to_learn_cycle_s(self, values: Values) -> float:
        """Return the window that shows the length of a point's cycles; 0 if known."""
        is_known = self._cycle(self._problem.space.name(values)) is not None
        return 0.0 if is_known else _TO_LEARN_CYCLE * (self.cycle_s or 0.0)

    def _longest_cycles(self, point: str) -> Lengths:
        """Return the lengths of a point's longest cycles; short trials only show their parts."""
        lengths = np.concatenate([np.empty(0, dtype=np.intp), *self._cycle_lengths.get(point, [])])
        longest: Lengths = lengths[2 * lengths > lengths.max(initial=0)]
        return longest

    def _cycle(self, point: str) -> int | None:
        """Return the steps per cycle of a point, if known and regular; a single one has to resemble the baseline's."""
        if self.cycle_s is None:  # cycles do not matter
            return None
        own, of_baseline = (self._longest_cycles(one) for one in (point, self._trials.baseline_point))
        cycle = cycle_length(own if len(own) != 1 else of_baseline)
        is_similar = len(own) != 1 or cycle is None or abs(own[0] - cycle) < _CYCLE_TOLERANCE * cycle
        return cycle if is_similar else None

    @property
    def finalist_look_s(self) -> float:
        """Window of a finalist's first trial, to show stalls."""
        return min(_LEAST_FIRST_LOOK_S, _MOST_OF_SHORT_BUDGETS * self._budget_s)

    def first(self) -> WindowGoal:
        """Return the window of the first baseline trial, long enough for rare stalls."""
        usual = self.usual()
        look_s = min(_LONGEST_FIRST_LOOK_S, max(_FIRST_LOOK * self._budget_s, self.finalist_look_s))
        return replace(usual, target_s=max(usual.length_s, look_s), most_s=max(usual.most_s, 2.0 * look_s))

    def why_longer(self) -> str:
        """Return why windows are longer than for steady steps; empty if they are not."""
        if self.until_step is not None:
            slower = f"Steps get slower during training, {self._growth:.1f}x in the first trial"
            return f"{slower}: each point is measured over the same steps, up to step {self.until_step}."
        cycle_s, goal, point = self.cycle_s, self.usual(), self._trials.baseline_point
        if cycle_s is None:
            return ""
        seen = self._trials.baseline_measurements()
        if not any(one.beat_s for one in seen):
            longest = format_duration(max(one.step_max_s or 0.0 for one in seen))
            unseen = f"Training stalled for {longest}, and the period of stalls was not seen: intervals are wider"
            return f"{unseen}. A longer --budget measures for longer."
        if LEAST_CYCLES * cycle_s <= goal.min_s:
            return ""
        every, length = format_duration(cycle_s), format_duration(goal.length_s)
        if self._cycle(point) is None:
            return f"Training stalls about every {every}: trials measure for {length}, and each stall counts."
        return f"Training stalls every {every}: trials measure whole cycles."

    @property
    def cycle_s(self) -> float | None:
        """Longest usual cycle of the baseline and the finalists, if known; short stalls count as noise."""
        cycles_s: dict[str, list[float]] = {}
        for trial in [one for one in self._trials.own if one.purpose in (Purpose.BASELINE, Purpose.CONFIRM)]:
            measured = trial.comparable
            if measured and measured.cycles is not None and (measured.stall_fraction or 0.0) > SHORT_STALL:
                # a cycle seen once is at least as long as the window
                cycles_s.setdefault(trial.point, []).append(measured.beat_s or measured.window_s)
        return max(map(median, cycles_s.values()), default=None)


class CurrentAnswer:
    """Current answer of the study, which a finalist has to beat.

    Attributes:
        current: As of the start of this search.
    """

    def __init__(self, problem: Problem, trials: SearchTrials, model: Model, windows: Windows, budget_s: float) -> None:
        self._problem = problem
        self._trials = trials
        self._model = model
        self._windows = windows
        self._budget_s = budget_s
        self._part: tuple[Space, int, Space] | None = None  # of a space, as of so many trials
        self.current = answers_by_search(trials.of_study(), problem.objective, excluded=problem.excluded)[None]

    def contender(self) -> Values | None:
        """Return the current answer as a point to try, unless it is the baseline, or failed in this search."""
        if self.current is None or self.left_out:
            return None
        point, values = self.current.point, self.current.trial.values
        is_out = point == self._trials.baseline_point or self._model.broke(values)
        return None if is_out or has_only_failed(point, self._trials.own) else values

    def contender_candidates(self) -> list[Candidate]:
        """Return the current answer, to confirm if nothing seems better than the baseline."""
        values = self.contender()
        known = self._model.observation(values) if values else None
        return [Candidate(observation=known, gain=0.0, speed_gain=None, speed_sd=self._model.sd)] if known else []

    def is_current(self, candidate: Candidate) -> bool:
        return self.current is not None and self._problem.space.name(candidate.observation.values) == self.current.point

    @property
    def left_out(self) -> str | None:
        """Name of the current answer if it is outside the searched space."""
        return self._name_if_outside(self._problem.space)

    @property
    def outside(self) -> str | None:
        """Name of the current answer if it is outside the config's domains."""
        return self._name_if_outside(self._problem.whole_space or self._problem.space)

    def _name_if_outside(self, space: Space) -> str | None:
        current = self.current
        return None if current is None or space.is_named(current.point, current.trial.values) else current.point

    def confirmation_basis(self, further: tuple[str, ...]) -> ConfirmationBasis:
        baseline = self._trials.baseline_measurements()
        return ConfirmationBasis(
            trials=tuple(self._trials.own),
            baseline=self._trials.baseline_point,
            sd=self._model.sd,
            usual_window_s=self._windows.usual().length_s,
            wished_window_s=verdict_s(pooled_gpus(baseline, None)),
            least_window_s=self._windows.least_s,
            min_steps=self._problem.limits.min_steps,
            look_s=self._windows.finalist_look_s,
            budget_s=self._budget_s,
            further=further,
        )

    def further(self, candidate: Candidate, unchanging: Values | None) -> list[Values]:
        """Return the points that join the pairs of a candidate and the baseline.

        These are the current answer, and if there is time the best point that leaves the training unchanged.
        """
        contender = self.contender()
        points = [] if contender is None or self.is_current(candidate) else [contender]
        if unchanging is None or self.is_same_training(candidate.observation.values) or unchanging in points:
            return points
        all_points = (self._problem.space.baseline, candidate.observation.values, *points, unchanging)
        pair_s = sum(expected_trial_s(self._trials.own, name) for name in map(self._problem.space.name, all_points))
        if FEWEST_PAIRS * pair_s > MOST_FOR_CONFIRMING * self._budget_s:
            return points  # it gets separate pairs, if there is time
        return [*points, unchanging]

    def same_training(self) -> Candidate | None:
        """Return the best point that leaves the training unchanged."""
        return next(iter(self._model.better(self.same_training_part)), None)

    @property
    def same_training_part(self) -> Space:
        """Part of the space that leaves the training unchanged, by the data of trials."""
        space, trials = self._model.space, self._trials.of_study()
        if self._part is None or self._part[0] is not space or self._part[1] != len(trials):
            self._part = space, len(trials), same_training(labelled(space, trials))
        return self._part[2]

    def is_same_training(self, values: Values) -> bool:
        return labelled(self._model.space, self._trials.of_study()).is_same_training(values)


class Target:
    """Goal of a search: its best point, or the best one that leaves the training unchanged.

    Attributes:
        best: Name of its best point, once it beats the baseline.
        trials_since_better: Latest trials without an improvement, after the first one.
    """

    def __init__(self, state: SearchState, *, is_same_training: bool, by_utilization: bool) -> None:
        self._state = state
        self._is_same_training = is_same_training
        self._by_utilization = by_utilization
        self.best: str | None = None
        self._least = 1.0
        self._has_found = False
        self.spent_s = 0.0
        self.ended: EndOfExploring | None = None
        self.trials_since_better = 0

    @property
    def part(self) -> Space:
        return self._state.answer.same_training_part if self._is_same_training else self._state.model.space

    def better(self) -> list[Candidate]:
        return self._state.model.better(self.part if self._is_same_training else None)

    def begin_with(self, name: str, speedup: float) -> None:
        """Start from the current answer, which the next best has to beat."""
        self.best, self._least = name, max(1.0, speedup)

    def count(self) -> None:
        self.trials_since_better += self._has_found

    def update(self) -> IncumbentChanged | None:
        """Return the event of a new best point, by more than noise."""
        better, trials = self.better(), self._state.trials
        before = next((one.gain for one in better if one.observation.name == self.best), -math.inf)
        if not better or better[0].gain - before <= self._state.model.sd / math.sqrt(better[0].observation.trials):
            return None
        best = better[0].observation
        speedup = trials.speedup([trial for trial in trials.own if trial.point == best.name])
        # The model may still favour a point whose own trials were slow.
        if speedup is None or not (speedup > self._least or self._by_utilization):
            return None
        self.best, self._least, self._has_found, self.trials_since_better = best.name, 1.0, True, 0
        changes, is_same = self._state.model.space.changes(best.values), self._is_same_training
        return IncumbentChanged(values=best.values, changes=changes, speedup=speedup, same_training=is_same)
