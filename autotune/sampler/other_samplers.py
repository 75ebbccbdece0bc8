"""Samplers of Optuna in the place of the acquisition: which point is tried next is theirs, all else of a search stays.

They see the observations of a search in a study of their own, in memory: positions in the list of choices where these
are ordered, categories where they are not, and as value the ln score of each trial.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from autotune.errors import ConfigError
from autotune.records import Values
from autotune.sampler.acquisition import MOST_TRIALS_OF_A_POINT, Proposal
from autotune.sampler.candidates import candidates
from autotune.sampler.observations import Observation
from autotune.space.knob import Knob
from autotune.space.space import Space

OURS = "autotune"
"""Name of the sampler that is no other: the acquisition."""

_SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
_NEEDS: Mapping[str, tuple[str, ...]] = {"gp": ("torch", "scipy")}
_MOST_ASKS = 30  # for a point that may be tried
_GAIN = 1.0  # of a proposal that says nothing of its own gain: worth a trial as long as there is time


def require_sampler(name: str) -> None:
    """Check that a sampler can be used here.

    Raises:
        ConfigError: A package that it needs is not installed.
    """
    if missing := [package for package in _NEEDS.get(name, ()) if find_spec(package) is None]:
        raise ConfigError(
            f"the sampler {name} needs {' and '.join(missing)}, which autotune's own environment does not have",
            where="sampler",
            remedy=f"Install it there (pip install {' '.join(missing)}), or take another: autotune, tpe, random.",
        )


class OtherSampler:
    """Proposals of one of Optuna's samplers.

    Args:
        name: ``tpe`` (multivariate, with its defaults), ``gp`` or ``random``.
        space: The search space.
        seed: Seed of its random numbers.
    """

    def __init__(self, name: str, space: Space, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {knob.path: distribution_of(knob) for knob in space.knobs}
        self._study = optuna.create_study(direction="maximize", sampler=_SAMPLERS[name](seed))
        self._rng = np.random.default_rng(seed)
        self._told: dict[str, int] = {}

    def next_trial(
        self, observations: Mapping[str, Observation], baseline: str, may_try: Callable[[Values], bool]
    ) -> Proposal | None:
        """Return its next proposal.

        Args:
            observations: Observation of each point.
            baseline: Name of the baseline; it is not proposed, the confirmation measures it.
            may_try: Returns whether a point may be tried: it is feasible, and its trial not too long.

        Returns:
            The proposal, at random where the sampler insists on points that may not be tried; None if no point may.
        """
        self._tell(observations)
        for _ in range(_MOST_ASKS):
            trial = self._study.ask(self._distributions)
            values = self._space.at(trial.params[knob.path] for knob in self._space.knobs)
            exhausted = self._is_exhausted(observations, values, baseline)
            is_taken = not exhausted and may_try(values)
            # What is measured is told by `_tell`, whoever proposed it; a point that may not be tried ranks below all.
            self._study.tell(trial, state=TrialState.FAIL if is_taken or exhausted else TrialState.PRUNED)
            if is_taken:
                return self._proposal(observations, values)
        for indices in self._rng.permutation(candidates(self._space, [self._space.baseline], self._rng)):
            values = self._space.at(indices)
            if not self._is_exhausted(observations, values, baseline) and may_try(values):
                return self._proposal(observations, values)
        return None

    def _proposal(self, observations: Mapping[str, Observation], values: Values) -> Proposal:
        known = observations.get(self._space.name(values))
        return Proposal(values=values, gain=_GAIN, is_repeat=bool(known and known.scores))

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
                self._study.add_trial(
                    create_trial(
                        state=TrialState.PRUNED if score is None else TrialState.COMPLETE,
                        value=score,
                        params=params,
                        distributions=self._distributions,
                    )
                )
            self._told[name] = len(results)


def distribution_of(knob: Knob) -> BaseDistribution:
    """Return the distribution of a knob's position among its choices."""
    last = len(knob.choices) - 1
    return IntDistribution(0, last) if knob.ordered else CategoricalDistribution(range(last + 1))
