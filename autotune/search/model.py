"""Model of the points of a search: what was observed of each, what is believed of them all, and which is tried next."""

import math
from collections.abc import Callable, Sequence
from itertools import chain

from autotune.records import NOT_COMPARED, Purpose, TrialRecord, Values
from autotune.sampler.acquisition import Acquisition, Proposal
from autotune.sampler.config_sampler import OtherSampler, SamplerChoice
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.initial_design import heuristic_proposals
from autotune.sampler.observations import Observation, Observations, expected_trial_sd, of_space
from autotune.search.confirm import Candidate, better_than_baseline
from autotune.search.findings import Findings
from autotune.search.problem import Problem
from autotune.search.schedule import expected_trial_s
from autotune.search.scope import Scope
from autotune.search.trials import SearchTrials
from autotune.search.warm_start import WarmStart
from autotune.search.worth import taken_back
from autotune.space.space import Space
from autotune.study.answer import broken_points
from autotune.study.members import on_one_scale
from autotune.study.record import StudyRecord
from autotune.trial.execution import Execution

REALIZED = 0.24
"""Share of what the model promises that more trials gained on average (`python -m scripts.bench promises`)."""


class Model:
    """Model of the points of a search.

    Attributes:
        scope: The knobs and values that are varied now.
        sd: Standard deviation of ln score between trials of one point.
    """

    def __init__(
        self,
        problem: Problem,
        study: StudyRecord,
        findings: Findings,
        trials: SearchTrials,
        *,
        sampler: SamplerChoice,
        seed: int,
        warm_start: WarmStart,
    ) -> None:
        self._problem = problem
        self._study = study
        self._findings = findings
        self._trials = trials
        self._sampler = sampler
        self._seed = seed
        self._warm_start = warm_start
        self._pending: list[Values] = []
        self._is_behind = False
        self._saw_a_pass = False
        self.scope = Scope(problem, findings, trials)
        self._rebuild()

    @property
    def space(self) -> Space:
        """What is searched now."""
        return self.scope.space

    def search_again(self) -> None:
        """Follow the scope, with all that the record knows of it."""
        self.scope.update()
        self._rebuild()

    def _rebuild(self) -> None:
        self._acquisition = Acquisition(self.space, self._seed)
        self._other = None if self._sampler is None else OtherSampler(self._sampler, self.space, self._seed)
        self._observe()

    def _observe(self) -> None:
        """Observe all that the record holds of this space."""
        records = of_space(self._trials.of_study(), self._problem.space)
        broken = {self.observed_name(values) for values in broken_points(records)}
        self._broken = broken - {self._trials.baseline_point}  # that is what all others are compared with
        records = [
            trial for trial in records if explores(trial) and self.observed_name(trial.values) not in self._broken
        ]
        alike = on_one_scale(records, self._study.members.own.machine if self._study.members.own else None)
        self._observations = Observations(self.space, self._problem.objective, alike, inert=self._findings.inert)
        self._fit()

    def take_in_others(self) -> None:
        """Take in what other machines have measured since the last time, and what they measure now.

        Raises:
            StudyError: The storage cannot be read.
        """
        new = self._study.refresh()
        pending = [values for values in self._study.members.trials_elsewhere if self.space.contains(values)]
        if not new and not self._is_behind and pending == self._pending:
            return
        self._pending = pending
        if self.scope.is_outgrown:
            self.search_again()
        else:
            self._observe()

    def learn(self, record: TrialRecord, done: Execution) -> None:
        """Take one more trial, which is among the search's own already."""
        if not explores(record):
            if record.validation and record.validation.broke:
                self.search_again()  # without this point
            return
        self._saw_a_pass = self._saw_a_pass or done.saw_a_pass
        self._observations.add(record)
        if self._study.members.others():
            self._is_behind = True  # it is fitted with what they have measured, in front of the next trial
        else:
            self._fit()
        samples = done.window.samples if done.window else None
        self._findings.learn(record, done.losses, done.folder.stdout, samples=samples, space=self.space)
        if self._findings.find_inert(self._trials.own, self._observations, space=self.space, sd=self.sd):
            self.search_again()
        self.scope.take_up_again()
        better = self.better()
        is_best = bool(better) and self.observed_name(record.values) == better[0].observation.name
        if is_best and self.scope.reach_further(record):
            self.search_again()

    def leave_alone(self, point: str) -> str:
        """Leave those knobs alone that cannot matter yet, by what phases of a point have shown on this machine.

        Returns:
            Which, and why; empty if there are none.
        """
        member = self._study.members.own
        return self.scope.leave_alone(point, member.machine if member else self._problem.machine.name)

    def leave_caches_alone(self) -> None:
        """Search without varying caches."""
        self.scope.leave_caches_alone()
        self.search_again()

    def _fit(self) -> None:
        self.sd = expected_trial_sd(self._observations)
        # This machine may have found since that it cannot turn all that others turn.
        pending = [values for values in self._pending if self.space.contains(values)]
        self._acquisition.learn(self._observations, self.sd, pending)
        self._is_behind = False

    def observed_name(self, values: Values) -> str:
        """Return the name of a point as observations have it: points that differ in inert knobs only are one."""
        return self._problem.space.name(self._without_inert(values))

    def _without_inert(self, values: Values) -> Values:
        baseline, inert = self._problem.space.baseline, self._findings.inert
        return {**values, **{path: baseline[path] for path in inert}}

    def next_trial(self, longest_s: float, design_points: int) -> Proposal | None:
        """Return the trial that promises most now; None if there is none.

        Args:
            longest_s: How long it may be expected to take.
        """
        feasible = self._feasibility()
        why_not = self.why_not(feasible)
        if self._other is not None:

            def may_try(values: Values) -> bool:
                return why_not(values) is None and self._acquisition.may_take(values, longest_s)

            return self._other.next_trial(self._observations, self._trials.baseline_point, may_try)
        heuristic_values = heuristic_proposals(
            self.space,
            self._observations,
            self._trials.data_wait(),
            has_gpu=bool(self._problem.machine.gpus),
            short_passes=self._saw_a_pass,
            pending=[values for values in self._pending if self.space.contains(values)],
        )
        first = self._warm_start.among(heuristic_values, self.space, self._observations, feasible.is_doubtful)
        further = map(self._without_inert, self.scope.outposts)  # they may have been found inert since
        outposts = (one for one in further if self._problem.space.name(one) not in self._observations)
        possible = next((values for values in chain(outposts, first) if why_not(values) is None), None)
        return self._acquisition.next_trial(
            self._trials.baseline_point, possible, why_not, longest_s, design_points, feasible.is_doubtful
        )

    def why_not(self, feasible: Feasibility | None = None) -> Callable[[Values], str | None]:
        """Return what gives the reason for which a point is not tried; None for one that may be."""
        feasible = feasible or self._feasibility()
        pending = {self.observed_name(values) for values in self._pending}
        # Each trial that fills a cache takes a whole pass over the data: one machine is enough to see what that gains.
        one_fills = not self._has_seen_a_cache and any(self.space.settles(values) for values in self._pending)

        def matters(values: Values) -> str | None:
            if not self.scope.allows(values):
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

    def _feasibility(self) -> Feasibility:
        return Feasibility(
            self.space,
            self._observations,
            self._problem.machine,
            memory_margin=self._problem.limits.memory_margin,
            hints=self._warm_start.hints,
        )

    @property
    def _has_seen_a_cache(self) -> bool:
        return any(one.scores and self.space.settles(one.values) for one in self._observations.values())

    def observation(self, values: Values) -> Observation | None:
        """Return what was observed of a point; None if it gave no numbers."""
        known = self._observations.get(self.observed_name(values))
        return known if known is not None and known.scores else None

    def broke(self, values: Values) -> bool:
        """Return whether a point broke when it was validated, so that it is not tried again."""
        return self.observed_name(values) in self._broken

    def believed_worth(self, values: Values) -> dict[str, float]:
        """Return what is believed of each change of a point, in ln score: infinite where it may not work without."""
        paths, why_not = list(self.space.changes(values)), self.why_not()
        points = [taken_back(values, [path], self.space) for path in paths]
        whole, *others = self._acquisition.predicted([values, *points])
        return {
            path: whole - other if why_not(point) is None else math.inf
            for path, point, other in zip(paths, points, others, strict=True)
        }

    def predicted(self, points: Sequence[Values]) -> list[float]:
        """Return what is believed of points, in ln score."""
        return list(self._acquisition.predicted(points))

    def better(self) -> list[Candidate]:
        """Return the points that are believed to be better than today's, best first."""
        return better_than_baseline(self._observations, self._acquisition.believed(), self.space)

    @property
    def tried_share(self) -> float:
        """Share of the points of the space that have a trial on record, 0..1."""
        return min(1.0, len(self._observations) / self.space.size)

    def gain_of(self, trials: int) -> float | None:
        """Predict the average gain of the best point after some more trials, e.g. 0.02; None before one can tell."""
        telling = [trial for trial in self._trials.own if trial.comparable and trial.purpose is not Purpose.CONFIRM]
        if len(telling) < 10:  # before these the model promises what its prior mean says
            return None
        gain = self._acquisition.promise(self._trials.baseline_point, trials, self.why_not())
        return math.expm1(REALIZED * max(0.0, gain))

    def gain_of_ten_minutes(self) -> float | None:
        """Predict the average gain of the best point after ten more minutes, e.g. 0.02; None before one can tell."""
        return self.gain_of(max(1, int(600.0 / expected_trial_s(self._trials.own))))


def explores(trial: TrialRecord) -> bool:
    """Return whether a trial is one of those that the model of the points is made of."""
    return trial.purpose not in NOT_COMPARED
