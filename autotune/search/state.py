"""State of one search: its trials, the model of the points, the lengths of windows, the current and the best answer."""

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
from autotune.search.data_check import DataCheck
from autotune.search.findings import Findings
from autotune.search.model import Model, explores
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.schedule import MOST_FOR_CONFIRMING, EndOfExploring, expected_trial_s, verdict_s
from autotune.search.trials import SearchTrials
from autotune.space.knob import Label
from autotune.space.space import Space, same_training
from autotune.study.achieved import claims_sd
from autotune.study.answer import gave_no_numbers, standing_answer
from autotune.study.data_effects import labelled
from autotune.study.gpu_pool import pooled_gpus
from autotune.trial.execution import Execution


class SearchState:
    """State of one search: grows with each trial, and is asked before each.

    Attributes:
        findings: Findings about the trainer other than its speed.
    """

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
        self.claims_sd = claims_sd(trials.of_study(), problem.objective)  # as it is when the search begins

    def learn(self, record: TrialRecord, done: Execution) -> None:
        """Learn from one more trial, which is among the search's own already."""
        self.data.learn(record, done.data, done.losses)
        if record.data is not None and record.data.effect is DataEffect.DIFFERENT:
            self._say_what_trains_on_other_data(record.number, record.data)
        if done.window is not None and record.comparable and explores(record):
            self.windows.add(record, done.window)
        self.model.learn(record, done)

    def _say_what_trains_on_other_data(self, number: int, shown: DataFinding) -> None:
        """Say which values make a trial train on different data, once for each."""
        found = self.labelled(self.model.space).relabelled
        blamed = {one for one, label in found.items() if label is Label.DATA} - self._blamed
        self._blamed |= blamed
        if blamed:
            values = ", ".join(f"{path}: {value}" for path, value in sorted(blamed, key=str))
            self.findings.remark(f"{values} trains on different data, as trial {number} shows: {shown.evidence}")

    def labelled(self, space: Space) -> Space:
        """Return a space with what the study's trials have shown of its values' data."""
        return labelled(space, self.trials.of_study())

    @property
    def scratch_loss(self) -> float | None:
        """First loss of today's config; None as long as no trial of it has told."""
        losses = self.findings.baseline_losses
        return losses.first if losses else None

    def _targets(self, parts: SearchParts) -> "Sequence[Target]":
        """Return what this search looks for; a sampler of the user's is asked for one thing."""
        by_utilization = parts.problem.objective.by_utilization
        whole = Target(self, is_same_training=False, by_utilization=by_utilization)
        space = parts.problem.space
        if parts.options.sampler is not None or same_training(space).size == space.size:
            return [whole]
        return [whole, Target(self, is_same_training=True, by_utilization=by_utilization)]


_FIRST_LOOK, _MOST_OF_SHORT_BUDGETS = 0.06, 0.08  # of the budget
_ALIKE = 0.05  # of the length of a cycle, that of two may differ by
_TO_LEARN_CYCLE = 3.5  # cycles, of which two are whole wherever they begin
_TO_SEE_CYCLES = LEAST_CYCLES + 1.5  # of which `LEAST_CYCLES` are whole where they differ somewhat
_GROWTH = 1.15  # of the time of a step over a look, from which steps are said to get slower
_SPARE = 1.05  # of the time that the fastest trial took for them: steps take what is asked for, though trials differ
_LEAST_SD = 0.01  # of ln speed between trials
_LEAST_ON_A_GPU_S = 2.0  # a driver looks a few times a second, and has to see who else is there
_LEAST_FIRST_LOOK_S, _LONGEST_FIRST_LOOK_S = 5.0, 180.0
_MOST_FOR_CYCLES = 0.06  # of the budget for each trial, as far as that is more than `trial.max_s`


class Windows:
    """Windows of a search's trials: as long as the noise of its study makes worthwhile.

    Attributes:
        until_step: Step up to which each point is measured, where steps get slower; None where they do not.
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
        """Add the window of a trial that is compared with others."""
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
        """Return the window of the next trial: the best use of time at the noise that this study has shown."""
        limits = self._problem.limits
        most_s = max(limits.max_s, _MOST_FOR_CYCLES * self._budget_s)
        target_s = max(self._even_s(), min(most_s, LEAST_CYCLES * (self.beat_s or 0.0)))
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s, most_s=most_s)

    @property
    def least_s(self) -> float:
        """Length of the shortest window that tells something: the usual one where training stops and goes."""
        is_even = self.beat_s is None and self.until_step is None
        return self._least_even_s if is_even else self.usual().length_s

    @property
    def _least_even_s(self) -> float:
        limits = self._problem.limits
        return min(limits.max_s, max(limits.min_s, _LEAST_ON_A_GPU_S if self._problem.machine.gpus else 0.0))

    def _even_s(self) -> float:
        """Return the length of a window that no stall cuts in two."""
        starts_s = [trial.measurement.first_step_s for trial in self._trials.own if trial.measurement]
        target_s = self._least_even_s
        if starts_s and self._within_variances_s:
            within = median(self._within_variances_s)
            # what trials differ by besides that, as far as it is more than nothing
            between = max(_LEAST_SD**2, self._model.sd**2 - 2.0 * within / median(self._windows_s))
            target_s = optimal_window_s(
                median(starts_s), within, between, min_s=target_s, max_s=self._problem.limits.max_s
            )
        return target_s

    def in_steps(self, goal: WindowGoal, point: str) -> WindowGoal:
        """Return a goal as a number of steps, of whole cycles where they are regular, as far as the point is known.

        Where steps get slower, each point is measured over the same steps.
        """
        if (until := self.until_step) is not None:
            return replace(goal, steps=until - until // 4, until_step=until)
        measured = [trial.comparable for trial in self._trials.own if trial.point == point]
        paces_s = [one.window_s / one.steps for one in measured if one is not None]
        step_s, cycle = min(paces_s, default=0.0), self._cycle(point)
        if not paces_s or (cycle is None and goal.most_s > goal.length_s and len(self._longest_cycles(point)) == 1):
            return goal  # as long as it takes to see how long a cycle is
        is_usual = goal.length_s <= self.usual().length_s
        length_s = self._even_s() if cycle is not None and is_usual else goal.length_s
        if cycle is None and len(self._longest_cycles(point)):
            length_s = max(length_s, min(goal.most_s, _TO_SEE_CYCLES * (self.beat_s or 0.0)))
        steps = max(goal.min_steps, math.ceil(_SPARE * length_s / step_s))
        if cycle is not None:
            fitting = int(max(goal.length_s, goal.most_s) / (step_s * cycle))
            cycles = min(max(1, round(steps / cycle)), fitting)
            steps, cycle = (cycles * cycle, cycle) if cycles * cycle >= goal.min_steps else (steps, None)
        return replace(goal, target_s=steps * step_s, steps=steps, cycle=cycle)

    def to_learn_cycle_s(self, values: Values) -> float:
        """Return how long a trial has to measure for the length of a point's cycles to be known; 0 where it is."""
        is_known = self._cycle(self._problem.space.name(values)) is not None
        return 0.0 if is_known else _TO_LEARN_CYCLE * (self.beat_s or 0.0)

    def _longest_cycles(self, point: str) -> Lengths:
        """Return the lengths of a point's longest cycles: short trials have seen those alone that these are made of."""
        lengths = np.concatenate([np.empty(0, dtype=np.intp), *self._cycle_lengths.get(point, [])])
        longest: Lengths = lengths[2 * lengths > lengths.max(initial=0)]
        return longest

    def _cycle(self, point: str) -> int | None:
        """Return the number of steps in a cycle of a point; None where that is not known, or not regular.

        A single one tells where it is like those of today's config.
        """
        if self.beat_s is None:  # they make no difference
            return None
        own, todays = (self._longest_cycles(one) for one in (point, self._trials.baseline_point))
        cycle = cycle_length(own if len(own) != 1 else todays)
        is_like = len(own) != 1 or cycle is None or abs(own[0] - cycle) < _ALIKE * cycle
        return cycle if is_like else None

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
        """Return why trials are not those of even steps, as a sentence; empty if they are."""
        if self.until_step is not None:
            return (
                f"Steps get slower as training goes on, {self._growth:.1f} times in the first look: each point is "
                f"measured over the same steps, up to the {self.until_step}th."
            )
        beat_s, goal, point = self.beat_s, self.usual(), self._trials.baseline_point
        if beat_s is None:
            return ""
        seen = self._trials.baseline_measurements()
        if not any(one.beat_s for one in seen):
            longest_s = max(one.step_max_s or 0.0 for one in seen)
            return (
                f"Training stopped for {format_duration(longest_s)}, and how often it does was not seen: intervals are "
                "as wide as that calls for. A longer --budget looks for longer."
            )
        if LEAST_CYCLES * beat_s <= goal.min_s:
            return ""
        every, length = format_duration(beat_s), format_duration(goal.length_s)
        if self._cycle(point) is None:
            return f"Training stops about every {every}: trials measure for {length}, and each stall counts."
        return f"Training stops and goes every {every}: trials measure whole cycles."

    @property
    def beat_s(self) -> float | None:
        """Usual time of the cycles of training, today's or a finalist's if it is longer, as far as they were seen.

        None also where stalls take so little that one too many is noise like other noise.
        """
        beats_s: dict[str, list[float]] = {}
        looked = (trial for trial in self._trials.own if trial.purpose in (Purpose.BASELINE, Purpose.CONFIRM))
        for trial in looked:
            measured = trial.comparable
            if measured and measured.cycles is not None and (measured.stall_fraction or 0.0) > SHORT_STALL:
                # of one that was seen once, it is no less
                beats_s.setdefault(trial.point, []).append(measured.beat_s or measured.window_s)
        return max(map(median, beats_s.values()), default=None)


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
        self._part: tuple[Space, int, Space] | None = None  # of a space, as of so many trials
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

    def confirmation_basis(self, further: tuple[str, ...]) -> ConfirmationBasis:
        """Return the facts that the size of a confirmation follows from.

        Args:
            further: Names of the points that run in each pair in addition, see `further`.
        """
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

    def further(self, candidate: Candidate, alike: Values | None) -> list[Values]:
        """Return the points that run in the pairs of a candidate, in addition to it and the baseline.

        That is the standing answer, which the candidate has to beat, and the best that leaves the training unchanged,
        where the candidate does not and there is time for it.

        Args:
            alike: The best point that leaves the training unchanged; None for none.
        """
        contender = self.contender()
        points = [] if contender is None or self.is_standing(candidate) else [contender]
        if alike is None or self.is_same_training(candidate.observation.values) or alike in points:
            return points
        named = map(
            self._problem.space.name, (self._problem.space.baseline, candidate.observation.values, *points, alike)
        )
        pair_s = sum(expected_trial_s(self._trials.own, name) for name in named)
        if FEWEST_PAIRS * pair_s > MOST_FOR_CONFIRMING * self._budget_s:
            return points  # it has pairs of its own, if there is time
        return [*points, alike]

    def same_training(self) -> Candidate | None:
        """Return the best point that leaves the training unchanged; None where none is better than today's."""
        return next(iter(self._model.better(self.same_training_part)), None)

    @property
    def same_training_part(self) -> Space:
        """The part of the space that leaves the training unchanged, by what the data of trials have shown."""
        space, trials = self._model.space, self._trials.of_study()
        if self._part is None or self._part[0] is not space or self._part[1] != len(trials):
            self._part = space, len(trials), same_training(labelled(space, trials))
        return self._part[2]

    def is_same_training(self, values: Values) -> bool:
        """Return whether a point leaves the training unchanged, by what the data of trials have shown."""
        return labelled(self._model.space, self._trials.of_study()).is_same_training(values)


class Target:
    """What a search looks for: its best point, or the best one that leaves the training unchanged.

    Args:
        by_utilization: Whether the objective is the GPU's utilization, not speed.

    Attributes:
        best: Name of its best point; None as long as nothing is known to be better than today's.
        spent_s: Time of the trials that were made for it.
        ended: Why exploring it has ended; None while it continues.
        trials_since_better: Latest trials for it that have found nothing better; 0 before something better is known.
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
        """The part of the space that it is looked for in."""
        return self._state.answer.same_training_part if self._is_same_training else self._state.model.space

    def better(self) -> list[Candidate]:
        """Return the points of it that are believed to be better than today's, best first."""
        return self._state.model.better(self.part if self._is_same_training else None)

    def begin_with(self, name: str, speedup: float) -> None:
        """Begin with the study's current answer: only what is faster takes its place."""
        self.best, self._least = name, max(1.0, speedup)

    def count(self) -> None:
        """Count one more trial that is made for it."""
        self.trials_since_better += self._has_found

    def update(self) -> IncumbentChanged | None:
        """Return that another point is best now, by more than noise; None where none is."""
        better, trials = self.better(), self._state.trials
        before = next((one.gain for one in better if one.observation.name == self.best), -math.inf)
        if not better or better[0].gain - before <= self._state.model.sd / math.sqrt(better[0].observation.trials):
            return None
        best = better[0].observation
        speedup = trials.speedup([trial for trial in trials.own if trial.point == best.name])
        # The model may still believe in a point whose own trials were slow: no news for the user.
        if speedup is None or not (speedup > self._least or self._by_utilization):
            return None
        self.best, self._least, self._has_found, self.trials_since_better = best.name, 1.0, True, 0
        changes = self._state.model.space.changes(best.values)
        return IncumbentChanged(
            values=best.values, changes=changes, speedup=speedup, same_training=self._is_same_training
        )
