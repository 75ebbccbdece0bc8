"""Peer as a sampler of Optuna: its proposals, in a study that need not measure what it asks for, or measures more."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.records import Values
from autotune.sampler.other_samplers import distribution_of
from autotune.space.space import Space
from scripts.bench.peers.methods import Proposals

_Point = tuple[int, ...]  # positions among the choices


class PeerSampler(BaseSampler):
    """Sampler that asks a peer, for a study of positions among a space's choices with the ln speed as its value.

    The peer is sent what the study knows of its point, whoever wanted that measured; the first trial counts, and None
    stands for one without a value. Until there is one, the point is proposed again. With the peer the study ends.

    Args:
        peer: The peer, a method that proposes no point twice; takes the space and a seed.
        space: The space.
        seed: Seed of the peer.
    """

    def __init__(self, peer: Callable[[Space, int], Proposals], space: Space, seed: int) -> None:
        self._peer = peer
        self._space = space
        self._seed = seed
        self._independent = RandomSampler(seed=seed)
        self._proposals: Proposals | None = None  # begun late: until then the sampler can be copied
        self._proposed: Values | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all knobs."""
        return {knob.path: distribution_of(knob) for knob in self._space.knobs}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the peer's next point without a trial; nothing if the peer has ended."""
        if self._proposals is None:
            self._proposals = self._peer(self._space, self._seed)
            self._proposed = next(self._proposals)
        speeds = self._speeds(study)
        while self._proposed is not None and (point := self._space.indices(self._proposed)) in speeds:
            try:
                self._proposed = self._proposals.send(speeds[point])
            except StopIteration:
                self._proposed = None
        if self._proposed is None:
            study.stop()
            return {}
        return dict(zip((knob.path for knob in self._space.knobs), self._space.indices(self._proposed), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _speeds(self, study: Study) -> Mapping[_Point, float | None]:
        """Return what the first trial of each point showed."""
        speeds: dict[_Point, float | None] = {}
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            point = tuple(trial.params[knob.path] for knob in self._space.knobs)
            speed = None if trial.state is TrialState.PRUNED else math.exp(trial.value or 0.0)
            speeds.setdefault(point, speed)
        return speeds
