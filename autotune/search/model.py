"""Model of a search's points, and choice of the next trial."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from autotune.measure.phases import CANNOT_MATTER
from autotune.records import NOT_COMPARED, Ending, Purpose, Scalar, TrialRecord, Values
from autotune.sampler.acquisition import Acquisition, Proposal, heuristic_proposals
from autotune.sampler.config_sampler import OtherSampler
from autotune.sampler.failing_values import FailingValues, failing_in_pairs
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.importance import with_knobs_fixed
from autotune.sampler.observations import Observation, Observations, expected_trial_sd, of_space
from autotune.search.confirm import Candidate, better_than_baseline
from autotune.search.findings import Findings
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem
from autotune.search.schedule import expected_trial_s, hang_or_start_s, start_times
from autotune.search.traps import with_traps
from autotune.search.trials import SearchTrials
from autotune.space.catalog import traits_of
from autotune.space.knob import same_scalar
from autotune.space.space import Space, without_settling
from autotune.study.answer import broken_points, has_failed
from autotune.study.members import on_one_scale
from autotune.trial.execution import Execution
from autotune.trial.outcome import EXPLANATIONS

REALIZED = 0.24
"""Share of the model's promise that more trials gained on average (`python -m scripts.bench promises`)."""


_DECIDING = 0.3  # of all trials, at most, to find the value that causes a crash


class Model:
    """Model of the points of a search.

    Attributes:
        sd: SD of ln score between trials of one point.
    """

    def __init__(self, parts: SearchParts, findings: Findings, trials: SearchTrials) -> None:
        self._problem = parts.problem
        self._study = parts.study
        self._options = parts.options
        self._budget = parts.budget
        self._warm_start = parts.warm_start
        self._findings = findings
        self._trials = trials
        self._pending: list[Values] = []
        self._is_stale = False
        self._deciding_trials = 0  # trials to find the value to blame
        self._failing: Sequence[FailingValues] = ()  # in pairs
        self._saw_a_pass = False
        self._reported: set[tuple[Ending, frozenset[str]]] = set()  # failures
        self._known_feasibility: Feasibility | None = None  # of the current observations
        self.scope = Scope(parts.problem, findings, trials)
        self._rebuild()

    @property
    def space(self) -> Space:
        return self.scope.space

    def update_scope(self) -> None:
        self.scope.update()
        self._rebuild()

    def _rebuild(self) -> None:
        sampler, seed = self._options.sampler, self._options.seed
        self._acquisition = Acquisition(self.space, seed)
        self._other = None if sampler is None else OtherSampler(sampler, self.space, seed)
        self._observe()

    def _observe(self) -> None:
        records = of_space(self._trials.of_study(), self._problem.space)
        broken = {self.observed_name(values) for values in broken_points(records)}
        self._broken = broken - {self._trials.baseline_point}
        self._failing = failing_in_pairs(self.space, [trial for trial in records if trial.purpose is Purpose.CONFIRM])
        exploring = [one for one in records if explores(one) and self.observed_name(one.values) not in self._broken]
        space = self._problem.space
        records = [one for one in exploring if not any(some.are_in(one.values, space) for some in self._failing)]
        on_scale = on_one_scale(records, self._study.members.own.machine if self._study.members.own else None)
        self._known_feasibility = None
        self._observations = Observations(self.space, self._problem.objective, on_scale, unused=self._findings.unused)
        self._fit()

    def update_from_others(self) -> None:
        """Update with other machines' finished and running trials.

        Raises:
            StudyError: The storage cannot be read.
        """
        new = self._study.refresh()
        pending = [values for values in self._study.members.trials_elsewhere if self.space.contains(values)]
        if not new and not self._is_stale and pending == self._pending:
            return
        self._pending = pending
        if self.scope.is_outgrown:
            self.update_scope()
        else:
            self._observe()

    def learn(self, record: TrialRecord, done: Execution) -> None:
        """Add a trial that is already in `SearchTrials.own`."""
        if not explores(record):
            if record.validation and record.validation.broke:
                self.update_scope()  # without this point
            return
        self._saw_a_pass = self._saw_a_pass or done.saw_a_pass
        self._known_feasibility = None
        self._observations.add(record)
        if self._study.members.others():
            self._is_stale = True  # the next fit includes their trials
        else:
            self._fit()
        if record.purpose is Purpose.CONFIRM and (has_failed(record) or self.broke(record.values)):
            self.update_scope()  # excludes or readmits this point
        if not record.comparable:
            self._report_failures()
        samples = done.window.samples if done.window else None
        self._findings.learn(record, done.losses, done.folder.stdout, samples=samples, space=self.space)
        if self._findings.find_unused(self._trials.own, self._observations, space=self.space, sd=self.sd):
            self.update_scope()
        self.scope.unfreeze_knobs()
        better = self.better()
        is_best = bool(better) and self.observed_name(record.values) == better[0].observation.name
        if is_best and self.scope.extend_knobs(record):
            self.update_scope()

    def _fit(self) -> None:
        self.starts = start_times(self._trials.own, self.space)
        self.sd = expected_trial_sd(self._observations)
        # This machine may have dropped knobs that others still vary.
        pending = [values for values in self._pending if self.space.contains(values)]
        self._acquisition.learn(self._observations, self.sd, pending)
        self._is_stale = False

    def observed_name(self, values: Values) -> str:
        """Return the name of a point without unused knobs."""
        return self._problem.space.name(self._without_unused(values))

    def _without_unused(self, values: Values) -> Values:
        baseline, unused = self._problem.space.baseline, self._findings.unused
        return {**values, **{path: baseline[path] for path in unused}}

    def next_trial(self, part: Space, longest_s: float, design_points: int) -> Proposal | None:
        """Return the most promising trial in a part of the space."""
        feasible = self._feasibility()
        why_not = self.why_not(longest_s)

        def is_doubtful(values: Values) -> bool:
            waited = self.starts.has_waited(self.space, values)
            return waited or self.space.is_late(values) or feasible.is_doubtful(values)

        if self._other is not None:

            def may_try(values: Values) -> bool:
                return part.contains(values) and not why_not(values) and self._acquisition.may_take(values, longest_s)

            return self._other.next_trial(self._observations, self._trials.baseline_point, may_try)
        heuristic_values = heuristic_proposals(
            part,
            {name: one for name, one in self._observations.items() if part.contains(one.values)},
            self._trials.data_wait(),
            has_gpu=bool(self._problem.machine.gpus),
            short_passes=self._saw_a_pass,
            pending=[values for values in self._pending if part.contains(values)],
        )
        first = self._warm_start.among(heuristic_values, part, self._observations, is_doubtful)
        further = map(self._without_unused, self.scope.outposts)  # knobs may be known as unused by now
        name = self._problem.space.name
        outposts = (one for one in further if part.contains(one) and name(one) not in self._observations)
        deciding = feasible.blame.deciding if self._may_decide(feasible.blame.ending) else None
        decisive = [] if deciding is None or not part.contains(deciding) else [deciding]
        possible = next((values for values in chain(decisive, outposts, first) if why_not(values) is None), None)
        self._deciding_trials += possible is not None and possible is deciding
        return self._acquisition.next_trial(
            self._trials.baseline_point, possible, why_not, longest_s, design_points, is_doubtful, part
        )

    def _may_decide(self, ending: Ending | None) -> bool:
        """Return whether few enough trials have tested which value is to blame."""
        return ending is Ending.HUNG or self._deciding_trials <= _DECIDING * len(self._trials.own)

    def why_not(self, longest_s: float = math.inf) -> Callable[[Values], str | None]:
        """Return a function that gives the reason to skip a point, or None."""
        feasible = self._feasibility()
        pending = {self.observed_name(values) for values in self._pending}
        # A trial that fills a cache takes a whole pass over the data: one machine is enough to measure the gain.
        has_seen_a_cache = any(one.scores and self.space.settles(one.values) for one in self._observations.values())
        one_fills = not has_seen_a_cache and any(self.space.settles(values) for values in self._pending)

        left_s = self._budget.left_s()

        def matters(values: Values) -> str | None:
            if not self.scope.allows(values):
                return "it changes a knob that cannot matter yet"
            return feasible.why_not(values) or self.starts.why_not(self.space, values, left_s, longest_s)

        if not self._broken and not pending:  # the usual case: skip naming every candidate
            return matters

        def why_not(values: Values) -> str | None:
            name = self.observed_name(values)
            if name in self._broken:
                return "it failed in its validation or its pairs"
            if name in pending:
                return "another machine is trying it"
            if one_fills and self.space.settles(values):
                return "another machine is measuring the gain from a cache"
            return matters(values)

        return why_not

    def waits_s(self, values: Values) -> float:
        """Return how long a trial may idle to distinguish a slow start from a hang."""
        blame = self._feasibility().blame
        if blame.ending is not Ending.HUNG or values != blame.deciding:
            return 0.0
        return hang_or_start_s(self._trials.own, self._budget.budget_s)

    def expected_s(self, values: Values) -> float:
        """Predict a trial's length from its point, else similar ones."""
        known = self._acquisition.expected_s(values) if self.observation(values) is None else None
        return known or expected_trial_s(self._trials.own, self._problem.space.name(values))

    def what_fails(self) -> Sequence[str]:
        return list(self._feasibility().what_fails().values())

    def _report_failures(self) -> None:
        for what, sentence in self._feasibility().what_fails().items():
            if what not in self._reported:
                self._reported.add(what)
                self._findings.remark(f"{sentence} {EXPLANATIONS[what[0]].remedy}")

    def _feasibility(self) -> Feasibility:
        if self._known_feasibility is None:
            self._known_feasibility = Feasibility(
                self.space,
                self._observations,
                self._problem.machine,
                memory_margin=self._problem.limits.memory_margin,
                hints=self._warm_start.hints,
                failing_in_pairs=self._failing,
            )
        return self._known_feasibility

    def observation(self, values: Values) -> Observation | None:
        known = self._observations.get(self.observed_name(values))
        return known if known is not None and known.scores else None

    def broke(self, values: Values) -> bool:
        """Return whether a point failed its validation or confirmation."""
        return self.observed_name(values) in self._broken

    def predicted(self, points: Sequence[Values]) -> list[float]:
        """Return predicted ln scores."""
        return self._acquisition.predicted(points)

    def better(self, part: Space | None = None) -> list[Candidate]:
        """Return the points predicted to beat the baseline, best first."""
        return better_than_baseline(self._observations, self._acquisition.believed(part), self.space)

    def tried_share(self, part: Space) -> float:
        """Return the share of a part of the space that was tried, 0..1."""
        return min(1.0, self._acquisition.tried_in(part) / part.size)

    def gain_of(self, trials: int, part: Space | None = None) -> float | None:
        """Predict the average relative gain from more trials, e.g. 0.02, if enough is known."""
        tried = [trial for trial in self._trials.own if trial.purpose is not Purpose.CONFIRM]
        scored = [trial for trial in tried if trial.comparable]
        # with fewer the model returns its prior mean, and if most have failed it knows little
        if len(scored) < 10 or len(scored) < 0.5 * len(tried):
            return None
        gain = self._acquisition.promise(self._trials.baseline_point, trials, self.why_not(), part)
        return math.expm1(REALIZED * max(0.0, gain))

    def gain_of_ten_minutes(self) -> float | None:
        return self.gain_of(max(1, int(600.0 / expected_trial_s(self._trials.own))))


def explores(trial: TrialRecord) -> bool:
    """Return whether a trial belongs in the model."""
    return trial.purpose not in NOT_COMPARED


_STARVED, _IDLE = 0.2, 0.7  # share of the time that waits for data, and of the busy cores meanwhile
_LEAP = 4


class Scope:
    """Scope of a search.

    Attributes:
        filling: Whether every trial fills its caches, because that takes too long to vary them.
        outposts: Points beyond those tried, to try next.
    """

    def __init__(self, problem: Problem, findings: Findings, trials: SearchTrials) -> None:
        self._problem = problem
        self._findings = findings
        self._trials = trials
        self._whole = with_traps(problem.space, problem.traps)
        self._extended: dict[str, float] = {}
        self._irrelevant_knobs: IrrelevantKnobs | None = None
        self.filling = False
        self.outposts: list[Values] = []
        self.update()

    def update(self) -> None:
        self._extended = self._extended_on_record()
        self.space = with_knobs_fixed(self._whole.within_reach(self._extended), self._findings.unused)

    @property
    def is_outgrown(self) -> bool:
        return self._extended_on_record() != self._extended

    def allows(self, values: Values) -> bool:
        return self._irrelevant_knobs is None or self._irrelevant_knobs.allows(values)

    def freeze_knobs(self, point: str, machine: str) -> str:
        """Freeze the knobs that cannot matter yet; return which and why."""
        self._irrelevant_knobs = irrelevant_knobs(self._trials.of_study(), self.space, point, machine)
        return self._irrelevant_knobs.why if self._irrelevant_knobs else ""

    def unfreeze_knobs(self) -> None:
        """Vary frozen knobs again once training is so much faster that they may matter."""
        frozen = self._irrelevant_knobs
        speeds = [(trial.point, trial.comparable.speed) for trial in self._trials.own if trial.comparable]
        then = [speed for point, speed in speeds if frozen and point == frozen.point]
        if frozen and then and max(speed for _, speed in speeds) >= frozen.until * median(then):
            self._irrelevant_knobs = None
            paths = ", ".join(sorted(frozen.paths))
            self._findings.remark(f"The bottleneck of training has changed: {paths} may matter now.")

    def freeze_caches(self) -> None:
        """Stop varying caches at the next update; each trial fills those of the baseline."""
        self.filling = self.space.settles(self._problem.space.baseline)
        self._whole = without_settling(self._whole)

    def extend_knobs(self, record: TrialRecord) -> bool:
        """Extend knobs at their largest value in the best point if it waits for data with an idle CPU.

        If the trainer does not report its waits, an idle CPU and an idle GPU suffice.

        Returns:
            Whether the next update widens the scope.
        """
        measured, cores = record.comparable, self._problem.machine.cpu_cores
        if measured is None or measured.cpu_cores is None or measured.cpu_cores > _IDLE * cores:
            return False
        why = "training waits for data with the CPU idle"
        if measured.data_wait_fraction is None:
            is_unknown = measured.gpu_utilization is None and bool(self._problem.machine.gpus)
            if is_unknown or (measured.gpu_utilization or 0.0) > _IDLE:
                return False
            why = "training leaves the CPU idle, and reports no waits for data"
        elif measured.data_wait_fraction < _STARVED:
            return False
        memory_bytes = (1.0 - self._problem.limits.memory_margin) * self._problem.machine.memory_bytes
        leap = min(_LEAP, memory_bytes / (measured.peak_memory_bytes or 1))  # each worker may use as much as all now
        outpost: dict[str, Scalar] = {}
        for knob in self._whole.knobs:
            value = record.values[knob.path]
            numbers = [choice for choice in knob.choices if isinstance(choice, int | float)]
            if not knob.ordered or not isinstance(value, int | float) or knob.path in self._findings.unused:
                continue
            # 0 is the framework's default, or no prefetching
            further = max(choice for choice in numbers if choice <= max(value, leap * (value or cores)))
            if knob.reach is not None and further > self._extended.get(knob.path, knob.reach):
                outpost[knob.path] = self._extended[knob.path] = further
            elif value == numbers[-1] and traits_of(knob).beyond and record.purpose is Purpose.CONFIRM:
                at = f"At {knob.path}: {value}, the largest value tried"
                self._findings.add_caution(f"{at}, {why}: list larger values under knobs: to try them.")
        if outpost:
            # together, because more samples at a time need more threads
            self.outposts.append({**record.values, **outpost})
            tried = " and ".join(f"{path} up to {value}" for path, value in outpost.items())
            self._findings.remark(f"{why[0].upper()}{why[1:]}: the search tries {tried}.")
        return bool(outpost)

    def _extended_on_record(self) -> dict[str, float]:
        """Return the largest value of each knob with a trial beyond `Knob.reach`."""
        further = dict(self._extended)
        for trial in of_space(self._trials.of_study(), self._problem.space):
            for knob in self._whole.knobs:
                value = trial.values[knob.path]
                if knob.reach is not None and isinstance(value, int | float):
                    further[knob.path] = max(value, further.get(knob.path, knob.reach))
        return further


@dataclass(frozen=True, kw_only=True)
class IrrelevantKnobs:
    """Knobs that cannot matter yet.

    Attributes:
        point: Point measured in phases.
        until: Speed relative to it from which they may matter.
    """

    paths: frozenset[str]
    point: str
    values: Values
    until: float
    why: str

    def allows(self, values: Values) -> bool:
        return all(same_scalar(values[path], self.values[path]) for path in self.paths)


def irrelevant_knobs(records: Iterable[TrialRecord], space: Space, point: str, machine: str) -> IrrelevantKnobs | None:
    """Return the knobs that cannot matter by the latest trial of a point in phases."""
    diagnosed = [trial for trial in records if trial.purpose is Purpose.DIAGNOSE and trial.point == point]
    here = [(trial.values, trial.conditions) for trial in diagnosed if trial.machine == machine]
    shown = [(values, one) for values, one in here if one.free_data_ratio and one.free_step_ratio]
    if not shown:
        return None
    values, latest = shown[-1]
    free_data, free_step = latest.free_data_ratio_high or 0.0, latest.free_step_ratio_high or 0.0
    if min(free_data, free_step) > CANNOT_MATTER:
        return None
    on_step = free_step < free_data
    free = [knob for knob in space.knobs if len(knob.choices) > 1]
    paths = frozenset(knob.path for knob in free if traits_of(knob).on_step is on_step)
    if not 0 < len(paths) < len(free):
        return None
    what, other = ("the step", "the input") if on_step else ("the input", "the step")
    most = min(free_data, free_step)
    return IrrelevantKnobs(
        paths=paths,
        point=point,
        values=values,
        until=0.8 * ((latest.free_data_ratio if on_step else latest.free_step_ratio) or 0.0),
        why=f"{other} is the bottleneck: with {what} free, training would be at most {most:.2f}x as fast; "
        f"{', '.join(sorted(paths))} {'is' if len(paths) == 1 else 'are'} kept fixed for now",
    )
