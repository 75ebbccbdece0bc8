"""State of one search: the observation of each point on record, the model of them all, and its own trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from autotune.clock import format_duration
from autotune.events import IncumbentChanged
from autotune.measure.cycles import LEAST_CYCLES, SHORT_STALL
from autotune.measure.phases import CANNOT_MATTER
from autotune.measure.score import LEAST_PAIRS, Objective, ln_score
from autotune.measure.statistics import optimal_window_s
from autotune.measure.window import WindowGoal
from autotune.records import NOT_COMPARED, Measurement, Purpose, Scalar, TrialRecord, Validity, Values
from autotune.sampler.acquisition import Acquisition, Proposal
from autotune.sampler.config_sampler import OtherSampler, SamplerChoice
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.importance import without_turning
from autotune.sampler.initial_design import heuristic_proposals
from autotune.sampler.observations import Observations, expected_trial_sd, of_space
from autotune.search.confirm import Candidate, ConfirmationBasis, better_than_baseline
from autotune.search.findings import Findings
from autotune.search.problem import Problem
from autotune.search.schedule import MOST_FOR_CONFIRMING, expected_trial_s, verdict_s
from autotune.search.warm_start import WarmStart
from autotune.search.worth import taken_back
from autotune.space.catalog import effects_of, row_of
from autotune.space.knob import Label, same_scalar
from autotune.space.space import Space
from autotune.study.answer import broken_points, gave_no_numbers, standing_answer
from autotune.study.gpu_pool import pooled_gpus
from autotune.study.members import on_one_scale
from autotune.study.record import Study
from autotune.study.summary import speed_over
from autotune.trial.execution import Execution

REALIZED = 0.24
"""Share of what the model promises that more trials gained on average (`python -m scripts.bench promises`)."""


_FIRST_LOOK, _MOST_OF_SHORT_BUDGETS = 0.06, 0.08  # of the budget
_LEAST_ON_A_GPU_S = 2.0  # a driver looks a few times a second, and has to see who else is there
_LEAST_FIRST_LOOK_S, _LONGEST_FIRST_LOOK_S = 5.0, 180.0
_STARVED, _IDLE = 0.2, 0.7  # share of the time that waits for data, and of the cores that are busy meanwhile
_LEAP = 4
_MOST_FOR_CYCLES = 0.06  # of the budget for each trial, as far as that is more than `trial.max_s`


_FOR_ONE_ANSWER = 0.05
"""What the best that leaves the training alone may lose, in ln score, for being a part of the whole answer."""


class SearchState:
    """State of one search: grows with each trial, and is asked before each.

    Attributes:
        space: What is searched: the problem's, without what was found to be of no use.
        filling: True if caches take too long to fill, and are filled in every trial.
        standing: The answer that the study stood by when this search began; None without one.
        sd: Standard deviation of ln score between trials of one point.
    """

    def __init__(
        self,
        problem: Problem,
        study: Study,
        findings: Findings,
        *,
        sampler: SamplerChoice,
        seed: int,
        budget_s: float,
        warm_start: WarmStart | None = None,
    ) -> None:
        self._budget_s = budget_s
        self._problem = problem
        self._study = study
        self._findings = findings
        self._sampler = sampler
        self._seed = seed
        self._warm_start = warm_start or WarmStart()
        self._within_variances_s: list[float] = []
        self._saw_a_pass = False
        self._pending: list[Values] = []
        self._is_behind = False
        self._irrelevant_knobs: IrrelevantKnobs | None = None
        self._further: dict[str, float] = {}
        self._outposts: list[Values] = []
        self.baseline_point = problem.space.name(problem.space.baseline)
        self.filling = False
        self.trials: list[TrialRecord] = []
        self._is_of_this_code: dict[frozenset[tuple[str, str]], bool] = {}
        findings.recall(of_space(self.records(), problem.space), problem.space)
        self.standing = standing_answer(self.records(), problem.objective, excluded=problem.excluded)
        self.incumbent = Incumbent(problem.objective)
        self.search_in(problem.space)

    def search_in(self, space: Space) -> None:
        """Search this space from now on, with all that the record knows of it."""
        self._whole = space
        self._further = self._further_on_record()
        self.space = without_turning(space.within_reach(self._further), self._findings.inert)
        self._acquisition = Acquisition(self.space, self._seed)
        self._other = None if self._sampler is None else OtherSampler(self._sampler, self.space, self._seed)
        self._observe()

    def records(self) -> list[TrialRecord]:
        """Return the study's trials of the code that this search began with, oldest first."""
        known, kept = self._is_of_this_code, []
        for trial in self._study.records():
            code = frozenset(trial.code.items())
            if code not in known:
                # The code on disk may be edited meanwhile: then it is what the first trial had that counts.
                first = self.trials[0] if self.trials else None
                known[code] = trial.shares_code_with(first) if first else bool(self._problem.of_this_code([trial]))
            if known[code]:
                kept.append(trial)
        return kept

    def _observe(self) -> None:
        """Observe all that the record holds of this space."""
        records = of_space(self.records(), self._problem.space)
        broken = {self.observed_name(values) for values in broken_points(records)}
        self._broken = broken - {self.baseline_point}  # that is what all others are compared with
        records = [
            trial for trial in records if _explores(trial) and self.observed_name(trial.values) not in self._broken
        ]
        alike = on_one_scale(records, self._study.member.machine if self._study.member else None)
        self._observations = Observations(self.space, self._problem.objective, alike, inert=self._findings.inert)
        self._fit()

    def take_in_others(self) -> None:
        """Take in what other machines have measured since the last time, and what they measure now.

        Raises:
            StudyError: The storage cannot be read.
        """
        new = self._study.refresh()
        pending = [one.values for one in self._study.trials_elsewhere() if self.space.contains(one.values)]
        if not new and not self._is_behind and pending == self._pending:
            return
        self._pending = pending
        if self._further_on_record() == self._further:
            self._observe()
        else:
            self.search_in(self._whole)

    def observed_name(self, values: Values) -> str:
        """Return the name of a point as observations have it: points that differ in inert knobs only are one."""
        return self._problem.space.name(self._without_inert(values))

    def _without_inert(self, values: Values) -> Values:
        baseline, inert = self._problem.space.baseline, self._findings.inert
        return {**values, **{path: baseline[path] for path in inert}}

    def leave_alone(self, point: str) -> str:
        """Leave those knobs alone that cannot matter yet, by what phases of a point have shown.

        Returns:
            Which, and why; empty if there are none.
        """
        member = self._study.member
        machine = member.machine if member else self._problem.machine.name
        self._irrelevant_knobs = irrelevant_knobs(self.records(), self.space, point, machine)
        return self._irrelevant_knobs.why if self._irrelevant_knobs else ""

    def _take_up_again(self) -> None:
        """Search over the knobs that were left alone, once training is so much faster that they may matter."""
        alone = self._irrelevant_knobs
        speeds = [(trial.point, trial.comparable.speed) for trial in self.trials if trial.comparable]
        then = [speed for point, speed in speeds if alone and point == alone.point]
        if alone and then and max(speed for _, speed in speeds) >= alone.until * median(then):
            self._irrelevant_knobs = None
            paths = ", ".join(sorted(alone.paths))
            self._findings.remarks.append(f"What limits training has changed: {paths} may matter now.")

    def leave_caches_alone(self) -> None:
        """Search without turning caches; where today's config has some, its trials are measured while they fill."""
        self.filling = self.space.settles(self._problem.space.baseline)
        self.search_in(self._whole.without_settling())

    def learn(self, record: TrialRecord, done: Execution) -> None:
        """Take one more trial."""
        self.trials.append(record)
        if not _explores(record):
            if record.validation and record.validation.broke:
                self.search_in(self._whole)  # without this point
            return
        self._saw_a_pass = self._saw_a_pass or done.saw_a_pass
        if done.window is not None and record.comparable:
            self._within_variances_s.append(done.window.within_variance_s())
        self._observations.add(record)
        if self._study.others():
            self._is_behind = True  # it is fitted with what they have measured, in front of the next trial
        else:
            self._fit()
        samples = done.window.samples if done.window else None
        self._findings.learn(record, done.losses, done.folder.stdout, samples=samples, space=self.space)
        if self._findings.find_inert(self.trials, self._observations, space=self.space, sd=self.sd):
            self.search_in(self._whole)
        self._take_up_again()
        self._reach_further(record)

    def _reach_further(self, record: TrialRecord) -> None:
        """Search larger values, too, of what the best point has at its largest, if that waits with the CPU idle."""
        measured, better = record.comparable, self.better()
        if measured is None or not better or self.observed_name(record.values) != better[0].observation.name:
            return
        waits, busy, cores = measured.data_wait_fraction, measured.cpu_cores, self._problem.machine.cpu_cores
        if waits is None or busy is None or waits < _STARVED or busy > _IDLE * cores:
            return
        why = "training waits for data, with the CPU idle"
        memory_bytes = (1.0 - self._problem.limits.memory_margin) * self._problem.machine.memory_bytes
        leap = min(_LEAP, memory_bytes / (measured.peak_memory_bytes or 1))  # each worker may need as much as all now
        outpost: dict[str, Scalar] = {}
        for knob in self._whole.knobs:
            value = record.values[knob.path]
            numbers = [choice for choice in knob.choices if isinstance(choice, int | float)]
            if not knob.ordered or not isinstance(value, int | float) or knob.path in self._findings.inert:
                continue
            # 0 is the framework's own choice, or nothing ahead
            further = max(choice for choice in numbers if choice <= max(value, leap * (value or cores)))
            if knob.reach is not None and further > self._further.get(knob.path, knob.reach):
                outpost[knob.path] = self._further[knob.path] = further
            elif value == numbers[-1] and (row := row_of(knob)) and row.beyond:
                self._findings.say(
                    f"At {knob.path}: {value}, the largest that is tried, {why}: list larger values under knobs: to "
                    "try them."
                )
        if outpost:
            # together: more samples at a time want more threads
            self._outposts.append({**record.values, **outpost})
            tried = " and ".join(f"{path} up to {value}" for path, value in outpost.items())
            self._findings.remarks.append(f"{why[0].upper()}{why[1:]}: a search tries {tried}.")
            self.search_in(self._whole)

    def _further_on_record(self) -> dict[str, float]:
        """Return the largest values of knobs that are tried by now, where some trial was beyond `Knob.reach`."""
        further = dict(self._further)
        for trial in of_space(self.records(), self._problem.space):
            for knob in self._whole.knobs:
                value = trial.values[knob.path]
                if knob.reach is not None and isinstance(value, int | float):
                    further[knob.path] = max(value, further.get(knob.path, knob.reach))
        return further

    def _fit(self) -> None:
        self.sd = expected_trial_sd(self._observations)
        # This machine may have found since that it cannot turn all that others turn.
        pending = [values for values in self._pending if self.space.contains(values)]
        self._acquisition.learn(self._observations, self.sd, pending)
        self._is_behind = False

    # Which next

    def next_trial(self, longest_s: float, design_points: int) -> Proposal | None:
        """Return the trial that promises most now; None if there is none.

        Args:
            longest_s: How long it may be expected to take.
        """
        feasible = self._feasibility()
        why_not = self._why_not(feasible)
        if self._other is not None:

            def may_try(values: Values) -> bool:
                return why_not(values) is None and self._acquisition.may_take(values, longest_s)

            return self._other.next_trial(self._observations, self.baseline_point, may_try)
        heuristic_values = heuristic_proposals(
            self.space,
            self._observations,
            self._data_wait(),
            has_gpu=bool(self._problem.machine.gpus),
            short_passes=self._saw_a_pass,
            pending=[values for values in self._pending if self.space.contains(values)],
        )
        first = self._warm_start.among(heuristic_values, self.space, self._observations, feasible.is_doubtful)
        further = map(self._without_inert, self._outposts)  # they may have been found inert since
        outposts = (one for one in further if self._problem.space.name(one) not in self._observations)
        possible = next((values for values in chain(outposts, first) if why_not(values) is None), None)
        return self._acquisition.next_trial(
            self.baseline_point, possible, why_not, longest_s, design_points, feasible.is_doubtful
        )

    def knows(self, values: Values) -> bool:
        """Return whether a point has been measured."""
        known = self._observations.get(self.observed_name(values))
        return known is not None and bool(known.scores)

    def broke(self, values: Values) -> bool:
        """Return whether a point broke when it was validated, so that it is not tried again."""
        return self.observed_name(values) in self._broken

    def believed_worth(self, values: Values) -> dict[str, float]:
        """Return what is believed of each change of a point, in ln score: infinite where it may not work without."""
        paths, why_not = list(self.space.changes(values)), self._why_not()
        points = [taken_back(values, [path], self.space) for path in paths]
        whole, *others = self._acquisition.predicted([values, *points])
        return {
            path: whole - other if why_not(point) is None else math.inf
            for path, point, other in zip(paths, points, others, strict=True)
        }

    def gain_of_ten_minutes(self) -> float | None:
        """Predict the average gain of the best point after ten more minutes, e.g. 0.02; None before one can tell."""
        return self.gain_of(max(1, int(600.0 / expected_trial_s(self.trials))))

    def gain_of(self, trials: int) -> float | None:
        """Predict the average gain of the best point after some more trials, e.g. 0.02; None before one can tell."""
        telling = [trial for trial in self.trials if trial.comparable and trial.purpose is not Purpose.CONFIRM]
        if len(telling) < 10:  # before these the model promises what its prior mean says
            return None
        gain = self._acquisition.promise(self.baseline_point, trials, self._why_not())
        return math.expm1(REALIZED * max(0.0, gain))

    def goal(self) -> WindowGoal:
        """Return the window of the next trial: the best use of time at the noise that this study has shown."""
        limits = self._problem.limits
        starts_s = [trial.measurement.first_step_s for trial in self.trials if trial.measurement]
        target_s = min(limits.max_s, max(limits.min_s, _LEAST_ON_A_GPU_S if self._problem.machine.gpus else 0.0))
        if starts_s and self._within_variances_s:
            target_s = optimal_window_s(
                median(starts_s), median(self._within_variances_s), self.sd**2, min_s=target_s, max_s=limits.max_s
            )
        most_s = max(limits.max_s, _MOST_FOR_CYCLES * self._budget_s)
        target_s = max(target_s, min(most_s, LEAST_CYCLES * (self.beat_s or 0.0)))
        return WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=target_s, most_s=most_s)

    @property
    def finalist_look_s(self) -> float:
        """Length of a finalist's first look: what chose it may have been too short to see its stalls."""
        return min(_LEAST_FIRST_LOOK_S, _MOST_OF_SHORT_BUDGETS * self._budget_s)

    def first_goal(self) -> WindowGoal:
        """Return the window of the first look at today's config: long enough to see what comes only now and then."""
        usual = self.goal()
        look_s = min(_LONGEST_FIRST_LOOK_S, max(_FIRST_LOOK * self._budget_s, self.finalist_look_s))
        return replace(usual, target_s=max(usual.length_s, look_s), most_s=max(usual.most_s, 2.0 * look_s))

    def why_longer(self) -> str:
        """Return why trials are longer than even steps would need, a sentence; empty if they are not."""
        beat_s, goal = self.beat_s, self.goal()
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
        looked = (trial for trial in self.trials if trial.purpose in (Purpose.BASELINE, Purpose.CONFIRM))
        for trial in looked:
            measured = trial.comparable
            if measured and measured.beat_s is not None and (measured.stall_fraction or 0.0) > SHORT_STALL:
                beats_s.setdefault(trial.point, []).append(measured.beat_s)
        return max(map(median, beats_s.values()), default=None)

    def _feasibility(self) -> Feasibility:
        return Feasibility(
            self.space,
            self._observations,
            self._problem.machine,
            memory_margin=self._problem.limits.memory_margin,
            hints=self._warm_start.hints,
        )

    def _why_not(self, feasible: Feasibility | None = None) -> Callable[[Values], str | None]:
        feasible = feasible or self._feasibility()
        pending = {self.observed_name(values) for values in self._pending}
        # Each trial that fills a cache takes a whole pass over the data: one machine is enough to see what that gains.
        one_fills = not self._has_seen_a_cache() and any(self.space.settles(values) for values in self._pending)
        alone = self._irrelevant_knobs

        def matters(values: Values) -> str | None:
            if alone is not None and not alone.allows(values):
                return "it changes what cannot matter yet"
            return feasible.why_not(values)

        if not self._broken and not pending:  # the usual case: no need to name every candidate
            return matters

        def why_not(values: Values) -> str | None:
            name = self.observed_name(values)
            if name in self._broken:
                return "it broke when it was validated"
            if name in pending:
                return "another machine tries it"
            if one_fills and self.space.settles(values):
                return "another machine finds out what a cache is worth"
            return matters(values)

        return why_not

    # What is known so far

    def contender(self) -> Values | None:
        """Return the standing answer, which whatever is confirmed has to beat; None where it is not to be tried.

        It is not where it is today's config, is no point of this space, or has failed in this search.
        """
        if self.standing is None or self.left_out:
            return None
        point = self.standing.point
        is_out = point in (self.baseline_point, *self._broken) or gave_no_numbers(point, self.trials)
        return None if is_out else self.standing.trial.values

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

    def contender_alone(self) -> list[Candidate]:
        """Return the standing answer as what is to be confirmed, where nothing seems to be better than today's."""
        values = self.contender()
        known = self._observations.get(self.observed_name(values)) if values else None
        if known is None or not known.scores:
            return []
        return [Candidate(observation=known, gain=0.0, speed_gain=None, speed_sd=self.sd)]

    def better(self) -> list[Candidate]:
        """Return the points that are believed to be better than today's, best first."""
        return better_than_baseline(self._observations, self._acquisition.believed(), self.space)

    def confirmation_basis(self, *, budget_s: float) -> ConfirmationBasis:
        """Return the facts that the size of a confirmation follows from."""
        baseline = self._baseline_measurements()
        return ConfirmationBasis(
            trials=tuple(self.trials),
            baseline=self.baseline_point,
            sd=self.sd,
            usual_window_s=self.goal().length_s,
            wished_window_s=verdict_s(pooled_gpus(baseline, None)),
            budget_s=budget_s,
            third=self._third(),
        )

    def _third(self) -> str | None:
        """Return the point that runs in the pairs of what is best now, besides that and today's; None for none."""
        best, contender = next(iter(self.better()), None), self.contender()
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
        values, baseline = candidate.observation.values, self.space.baseline
        changing = [knob.path for knob in self.space.knobs if knob.label is not Label.SAME_TRAINING]
        without = taken_back(values, changing, self.space)
        if self.space.is_same_training(values) or self.contender() is not None:
            return None
        if 3 * LEAST_PAIRS * expected_trial_s(self.trials) > MOST_FOR_CONFIRMING * self._budget_s:
            return None  # there is no time for a third one
        measured = (one.observation.values for one in self.better())
        best = next((one for one in measured if self.space.is_same_training(one)), None)
        points = [point for point in (without, best) if point and self.space.changes(point)]
        points = [point for point in points if self._why_not()(point) is None]
        if not points:
            return None
        believed = self._acquisition.predicted(points)
        good = (point for point, one in zip(points, believed, strict=True) if one > max(believed) - _FOR_ONE_ANSWER)
        chosen = next(good)
        return chosen if max(believed) > self._acquisition.predicted([baseline])[0] else None

    def is_standing(self, candidate: Candidate) -> bool:
        return (
            self.standing is not None and self._problem.space.name(candidate.observation.values) == self.standing.point
        )

    @property
    def trials_since_better(self) -> int:
        """Number of the latest trials that have found nothing better; 0 while nothing better is known."""
        return self.incumbent.trials_since(len(self.trials))

    @property
    def tried_share(self) -> float:
        """Share of the points of the space that have a trial on record, 0..1."""
        return min(1.0, len(self._observations) / self.space.size)

    def good_baseline_trials(self) -> list[TrialRecord]:
        """Return this search's trials of today's config that gave comparable numbers."""
        return [trial for trial in self.trials if trial.point == self.baseline_point and trial.comparable]

    def _baseline_measurements(self) -> list[Measurement]:
        return [trial.comparable for trial in self.good_baseline_trials() if trial.comparable]

    def speedup(self, trials: Sequence[TrialRecord]) -> float | None:
        """Return the speed of some trials over today's in this search; None if either gave no comparable numbers."""
        baseline = self.good_baseline_trials()
        good = [trial for trial in trials if trial.comparable]
        return speed_over(good, baseline) if good and baseline else None

    def score(self, record: TrialRecord) -> float | None:
        """Return the score of a trial over today's in this search, 1.0 for the first of today's config itself.

        Where today's config gave no numbers, the first trial that did is the unit.

        Returns:
            None if the trial, or what it would be compared with, does not tell the objective.
        """
        objective = self._problem.objective
        measured = record.measurement if record.validity is Validity.GOOD else None
        if measured is None or not objective.is_told_by(measured):
            return None
        good = [*self._baseline_measurements(), *(trial.comparable for trial in self.trials)]
        unit = next((one for one in good if one and objective.is_told_by(one)), measured)
        return math.exp(ln_score(measured, unit, objective))

    def pace(self) -> float:
        """Return the samples per second of the fastest trial, or of today's where no more is asked; 0 before one."""
        asked = self.good_baseline_trials() if self._problem.objective.by_utilization else self.trials
        return max((trial.comparable.samples_per_s for trial in asked if trial.comparable), default=0.0)

    def _has_seen_a_cache(self) -> bool:
        return any(one.scores and self.space.settles(one.values) for one in self._observations.values())

    @property
    def scratch_loss(self) -> float | None:
        """First loss of today's config; None as long as no trial of it has told."""
        losses = self._findings.baseline_losses
        return losses.first if losses else None

    def has_settled(self) -> bool:
        """Return True if some trial's caches were filled in time, so that another's were too large or too slow."""
        return any(trial.comparable and self.space.settles(trial.values) for trial in self.trials)

    def _data_wait(self) -> float | None:
        waits = [measured.data_wait_fraction for measured in self._baseline_measurements()]
        known = [wait for wait in waits if wait is not None]
        return median(known) if known else None


class Incumbent:
    """Best point of a search so far, as its user is shown it."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._name: str | None = None
        self._least = 1.0
        self._found_at: int | None = None

    def begin_with(self, name: str, speedup: float) -> None:
        """Begin with the study's current answer: only what is faster takes its place."""
        self._name, self._least = name, max(1.0, speedup)

    def update(self, state: SearchState) -> IncumbentChanged | None:
        """Return that another point is best now; None where none is."""
        better = state.better()
        if not better or better[0].observation.name == self._name:
            return None
        best = better[0].observation
        speedup = state.speedup([trial for trial in state.trials if trial.point == best.name])
        # The model may still believe in a point whose own trials were slow: no news for the user.
        if speedup is None or not (speedup > self._least or self._objective.by_utilization):
            return None
        self._name, self._least, self._found_at = best.name, 1.0, len(state.trials)
        return IncumbentChanged(values=best.values, changes=state.space.changes(best.values), speedup=speedup)

    def trials_since(self, trials: int) -> int:
        """Return how many of the trials came after it; 0 while this search has found none."""
        return 0 if self._found_at is None else trials - self._found_at


def _explores(trial: TrialRecord) -> bool:
    """Return whether a trial is one of those that the model of the points is made of."""
    return trial.purpose not in NOT_COMPARED


@dataclass(frozen=True, kw_only=True)
class IrrelevantKnobs:
    """Knobs that cannot matter yet.

    Attributes:
        point: Name of the point that was taken through phases.
        until: Speed over that point's from which on they may matter.
    """

    paths: frozenset[str]
    point: str
    values: Values
    until: float
    why: str

    def allows(self, values: Values) -> bool:
        """Return whether a point leaves these knobs alone."""
        return all(same_scalar(values[path], self.values[path]) for path in self.paths)


def irrelevant_knobs(records: Iterable[TrialRecord], space: Space, point: str, machine: str) -> IrrelevantKnobs | None:
    """Return the knobs that cannot matter by what the latest trial in phases of a point has shown, if any."""
    shown = [
        (trial.values, trial.conditions)
        for trial in records
        if trial.purpose is Purpose.DIAGNOSE
        and trial.point == point
        and trial.machine == machine
        and trial.conditions.free_data_ratio
        and trial.conditions.free_step_ratio
    ]
    if not shown:
        return None
    values, latest = shown[-1]
    free_data, free_step = latest.free_data_ratio_high or 0.0, latest.free_step_ratio_high or 0.0
    if min(free_data, free_step) > CANNOT_MATTER:
        return None
    on_step = free_step < free_data
    free = [knob for knob in space.knobs if len(knob.choices) > 1]
    paths = frozenset(knob.path for knob in free if effects_of(knob).on_step is on_step)
    if not 0 < len(paths) < len(free):
        return None
    what, other = ("the step", "the input") if on_step else ("the input", "the step")
    most = free_step if on_step else free_data
    return IrrelevantKnobs(
        paths=paths,
        point=point,
        values=values,
        until=0.8 * ((latest.free_data_ratio if on_step else latest.free_step_ratio) or 0.0),
        why=f"{other} is the limit: with {what} free, training would be at most {most:.2f}x as fast; "
        f"{', '.join(sorted(paths))} {'is' if len(paths) == 1 else 'are'} left alone for now",
    )
