"""Interface to Optuna: the acquisition as a sampler for any study, and any sampler in the place of the acquisition.

`ConfigSampler` is made for studies with a few noisy, expensive trials, and for parameters with a few values each, as
configs have them: categories, integers, floats with a step. Floats without a step are drawn at random.
"""

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

_SPREAD = 0.5  # of the scores of a study whose values have no logarithm


class ConfigSampler(BaseSampler):
    """Sampler of autotune's searches, for any study with one objective.

    A Gaussian process made for configs predicts every combination, and the knowledge gradient chooses the next trial;
    a promising combination may come again, as trials are taken to be noisy. Trials that failed, and those that violate
    a constraint, lower the chance of their neighbours; trials that go on are expected to show what the model says. A
    parameter that is there only under some values of another one is part of the model once trials have shown it.

    Args:
        seed: Makes its choices repeatable; None for others each time.
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
        """Draw other numbers from now on than the process that this one was forked from."""
        self._seeds = np.random.default_rng()
        self._random.reseed_rng()
        self._model = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters of a model: of all finished trials, or of those with some values of another parameter.

        Those with a single value are left out.
        """
        with self._lock:
            shared = self._search_space.calculate(study)
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        optional = {name: one.distribution for name, one in _conditions(trials, shared).items()}
        return {name: one for name, one in {**shared, **optional}.items() if not one.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the next trial; see `BaseSampler.sample_relative`.

        Raises:
            ValueError: The study has several objectives.
        """
        _require_one_objective(study)
        grids = {name: grid for name, one in search_space.items() if (grid := Grid.of(one)) is not None}
        params = {
            name: self.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
            if name not in grids
        }
        if grids:
            others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
            with self._lock:
                params |= self._propose(grids, others, study.direction)
        return {name: params[name] for name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value at random.

        Raises:
            ValueError: The study has several objectives.
        """
        _require_one_objective(study)
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _propose(
        self, grids: Mapping[str, "Grid"], trials: Sequence[FrozenTrial], direction: StudyDirection
    ) -> dict[str, Any]:
        """Return the values on these grids that promise most; at random where the model has none."""
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
    """Values of a parameter that are worth telling apart.

    Attributes:
        ordered: True if neighbours are alike.
        log: True if equal ratios are.
    """

    values: tuple[Any, ...]
    ordered: bool
    log: bool = False

    @classmethod
    def of(cls, distribution: BaseDistribution) -> Self | None:
        if isinstance(distribution, CategoricalDistribution):
            return cls(values=tuple(distribution.choices), ordered=False)
        if isinstance(distribution, IntDistribution) or (
            isinstance(distribution, FloatDistribution) and distribution.step is not None
        ):
            low, high = distribution.low, distribution.high
            step = None if distribution.log else distribution.step
            return cls(values=ladder(low, high, step=step, log=distribution.log), ordered=True, log=distribution.log)
        return None

    @cached_property
    def _places(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        values = np.array(self.values, dtype=float)
        return np.log(values) if self.log else values

    def index(self, value: Any) -> int | None:
        """Return the position of the nearest value; None for what is no value of the parameter."""
        if not self.ordered:
            same = (place for place, one in enumerate(self.values) if type(one) is type(value) and one == value)
            return next(same, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.log and value <= 0):
            return None
        return int(np.argmin(np.abs(self._places - (math.log(value) if self.log else value))))


@dataclass(frozen=True)
class _Condition:
    """Where a parameter is missing: under these values of another one."""

    distribution: BaseDistribution
    under: str
    values: frozenset[Any]


def _conditions(trials: Sequence[FrozenTrial], shared: Collection[str]) -> dict[str, _Condition]:
    """Return the condition of each parameter that is in some trials only, as far as one shared parameter tells it.

    Of several that tell it, the one with the fewest values in these trials.
    """
    found = {}
    optional = (trial for trial in trials if not trial.distributions.keys() <= set(shared))
    seen = {name: one for trial in optional for name, one in trial.distributions.items() if name not in shared}
    for name, distribution in seen.items():
        having = [trial for trial in trials if name in trial.distributions]
        if any(trial.distributions[name] != distribution for trial in having):
            continue
        lacking = [trial for trial in trials if name not in trial.distributions]
        tells = []
        for other in shared:
            there, missing = ({trial.params[other] for trial in some} for some in (having, lacking))
            if there.isdisjoint(missing):
                tells.append((len(there | missing), other, missing))
        if tells:
            _, other, missing = min(tells, key=lambda one: one[:2])
            found[name] = _Condition(distribution, other, frozenset(missing))
    return found


class _Model:
    """Model of one space: points are positions on the grids, the first one where a parameter is missing."""

    def __init__(self, grids: Mapping[str, Grid], conditions: Mapping[str, _Condition], *, seed: int) -> None:
        self.grids = grids
        self.conditions = conditions
        self._space = Space(
            knobs=tuple(
                Knob(
                    path=name,
                    choices=tuple(range(len(grid.values))),
                    ordered=grid.ordered,
                    baseline=0,
                    label=Label.UNKNOWN,
                    inactive_if=self._missing(name),
                )
                for name, grid in grids.items()
            )
        )
        self._acquisition = Acquisition(self._space, seed)

    def next_point(self, trials: Sequence[FrozenTrial], direction: StudyDirection) -> dict[str, int] | None:
        observations = self._observations(trials, direction)
        running = (self._point(trial.params) for trial in trials if trial.state is TrialState.RUNNING)
        pending = [point for point in running if point is not None]
        self._acquisition.learn(observations, expected_trial_sd(observations), pending)
        proposal = self._acquisition.next_trial("", None, self._space.why_infeasible)
        if proposal is None:
            return None
        return dict(zip(self.grids, self._space.indices(proposal.values), strict=True))

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
    """Return the score of each good trial by its number: the larger the better, on the scale of a logarithm."""
    values = {
        trial.number: trial.value
        for trial in trials
        if trial.state is TrialState.COMPLETE and trial.value is not None and not _is_violated(trial)
    }
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
    least = max(scores.values()) - 4.0  # below the best score, all are alike: the model is not for them
    return {number: max(score, least) for number, score in scores.items()}


def _require_one_objective(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError("ConfigSampler is for studies with one objective")


def _has_failed(trial: FrozenTrial) -> bool:
    return trial.state in (TrialState.FAIL, TrialState.PRUNED) or _is_violated(trial)


def _is_violated(trial: FrozenTrial) -> bool:
    return any(value > 0 for value in trial.constraints.values())


# Samplers of Optuna in the place of the acquisition: which point is tried next is theirs, all else of a search stays.
# They see the observations of a search in a study of their own, in memory: positions in the list of choices where these
# are ordered, categories where they are not, and as value the ln score of each trial. What they asked for is told as
# their own trial, with the attributes that they gave it; all others are added as trials that somebody else made.


SamplerChoice = BaseSampler | None
"""Any of Optuna's samplers for one objective; None for the acquisition."""


def require_sampler(sampler: object) -> None:
    """Check that what a caller gave is a sampler.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(sampler, SamplerChoice):
        raise ConfigError(
            f"{sampler!r} is no sampler", where="sampler", remedy="Give an instance of one of Optuna's samplers."
        )


def sampler_name(sampler: SamplerChoice) -> str:
    """Return the name of a sampler for the record: that of its class, or ``autotune``."""
    return "autotune" if sampler is None else type(sampler).__name__


class OtherSampler:
    """Proposals of one of Optuna's samplers.

    Args:
        sampler: Any sampler. A copy of it is used: a search whose space changes begins again with another one.
        seed: Seed of points at random; the sampler has its own.
    """

    def __init__(self, sampler: BaseSampler, space: Space, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {knob.path: distribution_of(knob) for knob in space.knobs}
        self._study = _Study.of(deepcopy(sampler))
        self._rng = np.random.default_rng(seed)
        self._told: dict[str, int] = {}
        self._asked: dict[str, Trial] = {}  # what it proposed last, by the name of the point

    def next_trial(
        self, observations: Mapping[str, Observation], baseline: str, may_try: Callable[[Values], bool]
    ) -> Proposal | None:
        """Return its next proposal.

        Args:
            baseline: Name of the baseline; it is not proposed, the confirmation measures it.
            may_try: Returns whether a point may be tried: it is feasible, and its trial not too long.

        Returns:
            The proposal, at random where the sampler insists on points that may not be tried; None if no point may, or
            the sampler has come to its end, as that of a grid does.
        """
        self._tell(observations)
        for _ in range(30):  # for a point that may be tried
            if self._study.is_stopped:
                return None
            trial = self._study.ask(self._distributions)
            values = self._space.at(trial.params[knob.path] for knob in self._space.knobs)
            exhausted = self._is_exhausted(observations, values, baseline)
            if not exhausted and may_try(values):
                self._asked = {self._space.name(values): trial}
                return self._proposal(observations, values)
            # What is measured was told by `_tell`, whoever proposed it; a point that may not be tried ranks below all.
            self._study.tell(trial, state=TrialState.FAIL if exhausted else TrialState.PRUNED)
        for indices in self._rng.permutation(candidates(self._space, [self._space.baseline], self._rng)):
            values = self._space.at(indices)
            if not self._is_exhausted(observations, values, baseline) and may_try(values):
                return self._proposal(observations, values)
        return None

    def _proposal(self, observations: Mapping[str, Observation], values: Values) -> Proposal:
        known = observations.get(self._space.name(values))
        # of a proposal that says nothing of its own gain: worth a trial as long as there is time
        return Proposal(values=values, gain=1.0, is_repeat=bool(known and known.scores))

    def _is_exhausted(self, observations: Mapping[str, Observation], values: Values, baseline: str) -> bool:
        name = self._space.name(values)
        known = observations.get(name)
        return name == baseline or (known is not None and known.trials >= MOST_TRIALS_OF_A_POINT)

    def _tell(self, observations: Mapping[str, Observation]) -> None:
        """Add the trials that came since the last time; one without a number is pruned, which ranks below all others.

        Reported as failed it would be ignored, and points like it proposed again and again.
        """
        for name, observation in observations.items():
            scores = (*observation.scores, *observation.rough_scores)
            results: list[float | None] = [*scores, *(None for _ in observation.endings)]
            indices = self._space.indices(observation.values)
            params = {knob.path: index for knob, index in zip(self._space.knobs, indices, strict=True)}
            for score in results[self._told.get(name, 0) :]:
                state = TrialState.PRUNED if score is None else TrialState.COMPLETE
                if asked := self._asked.pop(name, None):
                    self._study.tell(asked, score, state=state)
                else:
                    self._study.add_trial(
                        create_trial(state=state, value=score, params=params, distributions=self._distributions)
                    )
            self._told[name] = len(results)
        for asked in self._asked.values():  # never tried, or disturbed
            self._study.tell(asked, state=TrialState.FAIL)
        self._asked = {}


class _Study(optuna.Study):
    """Study that is asked and told, and that a sampler may stop.

    Optuna's own refuses to be stopped outside of `optimize`, which samplers do that enumerate something.
    """

    is_stopped = False

    @classmethod
    def of(cls, sampler: BaseSampler) -> Self:
        storage = InMemoryStorage()
        made = optuna.create_study(direction="maximize", storage=storage)
        return cls(made.study_name, storage, sampler=sampler)

    def stop(self) -> None:
        self.is_stopped = True


def distribution_of(knob: Knob) -> BaseDistribution:
    """Return the distribution of a knob's position among its choices."""
    last = len(knob.choices) - 1
    return IntDistribution(0, last) if knob.ordered else CategoricalDistribution(range(last + 1))
