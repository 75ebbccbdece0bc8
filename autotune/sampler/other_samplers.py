"""Samplers of Optuna in the place of the acquisition: which point is tried next is theirs, all else of a search stays.

They see the observations of a search in a study of their own, in memory: positions in the list of choices where these
are ordered, categories where they are not, and as value the ln score of each trial. What they asked for is told as
their own trial, with the attributes that they gave it; all others are added as trials that somebody else made.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Self

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import Trial, TrialState, create_trial

from autotune.errors import ConfigError
from autotune.records import Scalar, Values
from autotune.sampler.acquisition import MOST_TRIALS_OF_A_POINT, Proposal, candidates
from autotune.sampler.observations import Observation
from autotune.space.catalog import effects_of
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space

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


# Initial design by rules of thumb: the values that an expert would try first, given what the trials showed so far.


def heuristic_proposals(
    space: Space,
    observations: Mapping[str, Observation],
    data_wait: float | None,
    *,
    has_gpu: bool,
    short_passes: bool,
    pending: Sequence[Values] = (),
) -> Iterator[Values]:
    """Yield the untried proposals of an expert, the most urgent first, each based on the best point so far.

    The first sets all bundled knobs at once (they are cheap, safe, and rarely harm each other). Each further one
    changes one knob of the best point so far to a recommended value that no trial has tried, so improvements are kept.
    Of several recommended values of a knob (larger and larger batches) each is proposed only if the best point holds
    the one before it; where one fails, the value half way to it is.

    Args:
        data_wait: Fraction of its time that the baseline's training loop waits for data, 0 to 1; None if unknown.
        has_gpu: True if the step runs on a device of its own. Where step and loader share the processor, the loader may
            slow down even a loop that does not wait.
        short_passes: True if a trial covers a whole pass over the data. Otherwise every trial with a cache has to wait
            for one, and the cache comes last.
        pending: Points that other machines measure now. While the first proposal is one of them, further ones build on
            it, as if it had kept its promise.
    """
    # ... or, where the loader does not share its processor with the step, it is not
    loader_is_innocent = has_gpu and data_wait is not None and data_wait < 0.05
    bundle = space.baseline
    for knob in space.knobs:
        is_cheap = knob.bundled and (short_passes or not _settles(knob)) and not space.is_inert(knob, bundle)
        if is_cheap and knob.heuristic_values:
            bundle = space.with_heuristic(bundle, knob.path, knob.heuristic_values[0])
    is_tried_now = space.name(bundle) not in observations and space.name(bundle) in map(space.name, pending)
    if space.name(bundle) not in observations and not is_tried_now and not loader_is_innocent:
        yield bundle
    good = [observation for observation in observations.values() if observation.scores]
    best = max(good, key=lambda observation: observation.mean, default=None)
    start = best.values if best and not is_tried_now else bundle
    tried = [*(observation.values for observation in observations.values()), *pending]
    # share of the time that the baseline's loop waits for data: the loader is to blame ...
    device_first = loader_is_innocent or (data_wait is not None and data_wait < 0.3)

    def urgency(knob: Knob) -> tuple[bool, bool]:
        return _settles(knob) and not short_passes, effects_of(knob).on_step != device_first

    with_effect = [knob for knob in space.knobs if not space.is_inert(knob, start)]
    for knob in sorted(with_effect, key=urgency):
        for before, value in zip((None, *knob.heuristic_values), knob.heuristic_values, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not any(same_scalar(values[knob.path], value) for values in tried):
                yield space.with_heuristic(start, knob.path, value)
        if (half := _half_way(knob, start, observations.values())) is not None:
            yield space.with_heuristic(start, knob.path, half)


def _half_way(knob: Knob, start: Values, observations: Iterable[Observation]) -> Scalar:
    """Return the value half way to a recommended one with which every trial failed; None for none that is new."""
    known = [(knob.index(one.values[knob.path]) or 0, bool(one.scores)) for one in observations]
    worked = {place for place, has_worked in known if has_worked}
    failed = {place for place, _ in known if knob.choices[place] in knob.heuristic_values} - worked
    place = knob.index(start[knob.path])
    if not failed or not knob.ordered or place is None:
        return None
    nearest = min(failed, key=lambda other: abs(other - place))
    half = (place + nearest) // 2 if nearest > place else -(-(place + nearest) // 2)
    return None if half == place or half in dict(known) else knob.choices[half]


def _settles(knob: Knob) -> bool:
    return any(same_scalar(value, late) for value in knob.heuristic_values for late in knob.settling)
