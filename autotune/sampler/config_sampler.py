"""Optuna interface: the acquisition as an Optuna sampler, and any Optuna sampler as the acquisition."""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Self

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.errors import ConfigError
from autotune.records import Ending, Values
from autotune.sampler.acquisition import MOST_TRIALS_OF_A_POINT, Acquisition, Proposal, candidates
from autotune.sampler.observations import Observation, expected_trial_sd
from autotune.space.knob import InactiveIf, Knob, Label, ladder
from autotune.space.space import Space, point_name

_SPREAD = 0.5  # median absolute deviation of the scores if values have no logarithm


class ConfigSampler(BaseSampler):
    """Sampler of autotune's searches, for any single-objective study with few, noisy, expensive trials.

    A Gaussian process predicts combinations of categories, integers and stepped floats (other floats are random); the
    knowledge gradient chooses the next, possibly a repeat. Failures and violated constraints lower the probability of
    success nearby.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seeds = np.random.default_rng(seed)
        self._random = RandomSampler(seed=seed)
        self._search_space = IntersectionSearchSpace()
        self._model: _Model | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_model": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def reseed_rng(self) -> None:
        self._seeds = np.random.default_rng()
        self._random.reseed_rng()
        self._model = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the non-constant parameters of all finished trials, and conditional ones."""
        with self._lock:
            shared = self._search_space.calculate(study)
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        optional = {name: one.distribution for name, one in _conditions(trials, shared).items()}
        return {name: one for name, one in {**shared, **optional}.items() if not one.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the next trial; raise ValueError for several objectives."""
        _require_one_objective(study)
        grids = {name: grid for name, one in search_space.items() if (grid := Grid.of(one)) is not None}
        others = {name: one for name, one in search_space.items() if name not in grids}
        params = {name: self.sample_independent(study, trial, name, one) for name, one in others.items()}
        if grids:
            trials = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
            with self._lock:
                params |= self._propose(grids, trials, study.direction)
        return {name: params[name] for name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a random value; raise ValueError for several objectives."""
        _require_one_objective(study)
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _propose(
        self, grids: Mapping[str, "Grid"], trials: Sequence[FrozenTrial], direction: StudyDirection
    ) -> dict[str, Any]:
        finished = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        everywhere = set(grids).intersection(*(trial.params for trial in finished))
        conditions = {name: one for name, one in _conditions(finished, everywhere).items() if name in grids}
        if self._model is None or (self._model.grids, self._model.conditions) != (grids, conditions):
            self._model = _Model(grids, conditions, seed=int(self._seeds.integers(2**31)))
        chosen = self._model.next_point(trials, direction) or {
            name: int(self._seeds.integers(len(grid.values))) for name, grid in grids.items()
        }
        return {name: grid.values[chosen[name]] for name, grid in grids.items()}


@dataclass(frozen=True)
class Grid:
    """Values of a parameter."""

    values: tuple[Any, ...]
    ordered: bool
    log: bool = False

    @classmethod
    def of(cls, distribution: BaseDistribution) -> Self | None:
        if isinstance(distribution, CategoricalDistribution):
            return cls(values=tuple(distribution.choices), ordered=False)
        if not isinstance(distribution, IntDistribution | FloatDistribution) or distribution.step is None:
            return None
        step, log = None if distribution.log else distribution.step, distribution.log
        return cls(values=ladder(distribution.low, distribution.high, step=step, log=log), ordered=True, log=log)

    @cached_property
    def _places(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        values = np.array(self.values, dtype=float)
        return np.log(values) if self.log else values

    def index(self, value: Any) -> int | None:
        """Return the position of the nearest value, if it is a value of the parameter."""
        if not self.ordered:
            same = (place for place, one in enumerate(self.values) if type(one) is type(value) and one == value)
            return next(same, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.log and value <= 0):
            return None
        return int(np.argmin(np.abs(self._places - (math.log(value) if self.log else value))))


@dataclass(frozen=True)
class _Condition:
    """Values of another parameter under which one is missing."""

    distribution: BaseDistribution
    under: str
    values: frozenset[Any]


def _conditions(trials: Sequence[FrozenTrial], shared: Collection[str]) -> dict[str, _Condition]:
    """Return the condition of each parameter that only some trials have, the simplest of several."""
    found = {}
    optional = (trial for trial in trials if not trial.distributions.keys() <= set(shared))
    seen = {name: one for trial in optional for name, one in trial.distributions.items() if name not in shared}
    for name, distribution in seen.items():
        having = [trial for trial in trials if name in trial.distributions]
        if any(trial.distributions[name] != distribution for trial in having):
            continue
        lacking = [trial for trial in trials if name not in trial.distributions]
        deciding = []
        for other in shared:
            there, missing = ({trial.params[other] for trial in some} for some in (having, lacking))
            if there.isdisjoint(missing):
                deciding.append((len(there | missing), other, missing))
        if deciding:
            _, other, missing = min(deciding, key=lambda one: one[:2])
            found[name] = _Condition(distribution, other, frozenset(missing))
    return found


class _Model:
    """Model of one space: points are positions on the grids, 0 for a missing parameter."""

    def __init__(self, grids: Mapping[str, Grid], conditions: Mapping[str, _Condition], *, seed: int) -> None:
        self.grids = grids
        self.conditions = conditions
        knobs = [
            Knob(
                path=name,
                choices=tuple(range(len(grid.values))),
                ordered=grid.ordered,
                baseline=0,
                label=Label.UNKNOWN,
                inactive_if=self._missing(name),
            )
            for name, grid in grids.items()
        ]
        self._space = Space(knobs=tuple(knobs))
        self._acquisition = Acquisition(self._space, seed)

    def next_point(self, trials: Sequence[FrozenTrial], direction: StudyDirection) -> dict[str, int] | None:
        observations = self._observations(trials, direction)
        running = (self._point(trial.params) for trial in trials if trial.state is TrialState.RUNNING)
        pending = [point for point in running if point is not None]
        self._acquisition.learn(observations, expected_trial_sd(observations), pending)
        proposal = self._acquisition.next_trial("", None, self._space.why_infeasible)
        return dict(zip(self.grids, self._space.indices(proposal.values), strict=True)) if proposal else None

    def _observations(self, trials: Sequence[FrozenTrial], direction: StudyDirection) -> dict[str, Observation]:
        scores = _scores(trials, maximize=direction is StudyDirection.MAXIMIZE)
        observations: dict[str, Observation] = {}
        for trial in trials:
            point = self._point(trial.params)
            score = scores.get(trial.number)
            if point is None or (score is None and not _has_failed(trial)):
                continue
            name = point_name(point)
            known = observations.setdefault(name, Observation(name=name, values=point))
            known = replace(known, durations_s=(*known.durations_s, 1.0))
            if score is None:
                observations[name] = replace(known, endings=(*known.endings, Ending.CRASHED))
            else:
                observations[name] = replace(known, scores=(*known.scores, score))
        return observations

    def _point(self, params: Mapping[str, Any]) -> Values | None:
        places = {name: grid.index(params[name]) for name, grid in self.grids.items() if name in params}
        known = {name: place for name, place in places.items() if place is not None}
        for name, condition in self.conditions.items():
            if name not in params and params.get(condition.under) in condition.values:
                known[name] = 0
        return {name: known[name] for name in self.grids} if len(known) == len(self.grids) else None

    def _missing(self, name: str) -> InactiveIf | None:
        if name not in self.conditions:
            return None
        under = self.conditions[name].under
        places = (self.grids[under].index(value) for value in self.conditions[name].values)
        return InactiveIf(path=under, values=tuple(sorted(place for place in places if place is not None)))


def _scores(trials: Iterable[FrozenTrial], *, maximize: bool) -> dict[int, float]:
    """Return the score of each successful trial by number: higher is better, logarithmic."""
    complete = (trial for trial in trials if trial.state is TrialState.COMPLETE and not _is_violated(trial))
    values = {trial.number: trial.value for trial in complete if trial.value is not None}
    finite = {number: value for number, value in values.items() if math.isfinite(value)}
    if not finite:
        return {}
    if min(finite.values()) > 0:
        scores = {number: math.log(value) for number, value in finite.items()}
    else:
        center = median(finite.values())
        spread = median(abs(value - center) for value in finite.values()) or 1.0
        scores = {number: _SPREAD * (value - center) / spread for number, value in finite.items()}
    if not maximize:
        scores = {number: -score for number, score in scores.items()}
    least = max(scores.values()) - 4.0  # further below the best, differences don't matter
    return {number: max(score, least) for number, score in scores.items()}


def _require_one_objective(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError("ConfigSampler supports only one objective")


def _has_failed(trial: FrozenTrial) -> bool:
    return trial.state in (TrialState.FAIL, TrialState.PRUNED) or _is_violated(trial)


def _is_violated(trial: FrozenTrial) -> bool:
    return any(value > 0 for value in trial.constraints.values())


# Optuna samplers as the acquisition. They see a search as an in-memory study: parameters are positions among a knob's
# choices, or categories if unordered; values are ln scores. Trials they asked for keep the attributes they set.


SamplerChoice = BaseSampler | None
"""Any single-objective Optuna sampler; None for autotune's."""


def require_sampler(sampler: object) -> None:
    """Raise `ConfigError` if an argument isn't a sampler."""
    if not isinstance(sampler, SamplerChoice):
        remedy = "Pass an instance of an Optuna sampler."
        raise ConfigError(f"{sampler!r} is not a sampler", where="sampler", remedy=remedy)


def sampler_name(sampler: SamplerChoice) -> str:
    """Return the class name of a sampler, or ``autotune``."""
    return "autotune" if sampler is None else type(sampler).__name__


class OtherSampler:
    """Proposals of a copy of an Optuna sampler."""

    def __init__(self, sampler: BaseSampler, space: Space, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {knob.path: distribution_of(knob) for knob in space.knobs}
        self._study = _Study.of(deepcopy(sampler))
        self._rng = np.random.default_rng(seed)
        self._reported: dict[str, int] = {}  # number of trials, by point
        self._asked: dict[str, Trial] = {}  # latest proposal, by point

    def next_trial(
        self, observations: Mapping[str, Observation], baseline: str, may_try: Callable[[Values], bool]
    ) -> Proposal | None:
        """Return the next proposal: random if the sampler insists on forbidden points, None if none is left."""
        self._report(observations)
        for _ in range(30):  # attempts to get an allowed point
            if self._study.is_stopped:
                return None
            trial = self._study.ask(self._distributions)
            values = self._space.at(trial.params[knob.path] for knob in self._space.knobs)
            exhausted = self._is_exhausted(observations, values, baseline)
            if not exhausted and may_try(values):
                self._asked = {self._space.name(values): trial}
                return self._proposal(observations, values)
            # exhausted points are already reported; a forbidden one ranks below all others
            self._study.tell(trial, state=TrialState.FAIL if exhausted else TrialState.PRUNED)
        for indices in self._rng.permutation(candidates(self._space, [self._space.baseline], self._rng)):
            values = self._space.at(indices)
            if not self._is_exhausted(observations, values, baseline) and may_try(values):
                return self._proposal(observations, values)
        return None

    def _proposal(self, observations: Mapping[str, Observation], values: Values) -> Proposal:
        known = observations.get(self._space.name(values))
        # Optuna samplers report no gain: 1.0 is worth a trial as long as there is time
        return Proposal(values=values, gain=1.0, is_repeat=bool(known and known.scores))

    def _is_exhausted(self, observations: Mapping[str, Observation], values: Values, baseline: str) -> bool:
        name = self._space.name(values)
        known = observations.get(name)
        return name == baseline or (known is not None and known.trials >= MOST_TRIALS_OF_A_POINT)

    def _report(self, observations: Mapping[str, Observation]) -> None:
        """Add new trials, those without a score as pruned: samplers ignore failed ones."""
        for name, observation in observations.items():
            scores = (*observation.scores, *observation.rough_scores)
            results: list[float | None] = [*scores, *(None for _ in observation.endings)]
            indices = self._space.indices(observation.values)
            params = {knob.path: index for knob, index in zip(self._space.knobs, indices, strict=True)}
            for score in results[self._reported.get(name, 0) :]:
                state = TrialState.PRUNED if score is None else TrialState.COMPLETE
                if asked := self._asked.pop(name, None):
                    self._study.tell(asked, score, state=state)
                else:
                    added = create_trial(state=state, value=score, params=params, distributions=self._distributions)
                    self._study.add_trial(added)
            self._reported[name] = len(results)
        for asked in self._asked.values():  # never run, or disturbed
            self._study.tell(asked, state=TrialState.FAIL)
        self._asked = {}


class _Study(optuna.Study):
    """Study that a sampler may stop outside of `optimize`."""

    is_stopped = False

    @classmethod
    def of(cls, sampler: BaseSampler) -> Self:
        storage = InMemoryStorage()
        created = optuna.create_study(direction="maximize", storage=storage)
        return cls(created.study_name, storage, sampler=sampler)

    def stop(self) -> None:
        self.is_stopped = True


def distribution_of(knob: Knob) -> BaseDistribution:
    """Return the distribution of a knob's position among its choices."""
    last = len(knob.choices) - 1
    return IntDistribution(0, last) if knob.ordered else CategoricalDistribution(range(last + 1))
