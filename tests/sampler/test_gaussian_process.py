"""Gaussian process: posteriors from some trials."""

import numpy as np
import pytest

from autotune.sampler.gaussian_process import (
    Array,
    GaussianProcess,
    Indices,
    Posterior,
    SuccessProbability,
    TrainingData,
)
from autotune.space.space import Space
from tests.runs import knob

SIZES = (6, 5, 3, 2)
SPACE = Space(
    knobs=(knob("n", *range(6)), knob("m", *range(5)), knob("mode", "a", "b", "c"), knob("flag", False, True))
)


def _truth(points: Indices) -> Array:
    """A loader that workers (n) and a mode help, and a step that a flag helps: the slower of the two decides."""
    load = np.where(points[:, 2] == 1, 0.3, 1.0) / (1 + 0.6 * points[:, 0])
    step = np.where(points[:, 3] == 1, 0.25, 0.4)
    return np.asarray(-np.log(np.maximum(load, step)))


def _drawn(count: int, rng: np.random.Generator) -> Indices:
    return np.column_stack([rng.integers(0, size, count) for size in SIZES])


def _fitted(points: Indices, scores: Array, sd: float = 0.05) -> GaussianProcess:
    surrogate = GaussianProcess(SPACE)
    for _ in range(5):
        surrogate.fit(TrainingData(points=points, scores=scores, variances=np.full(len(scores), sd**2)))
    return surrogate


def _after(count: int, seed: int) -> tuple[Posterior, Array]:
    rng = np.random.default_rng(seed)
    points = _drawn(count, rng)
    surrogate = _fitted(points, _truth(points) + 0.05 * rng.standard_normal(count))
    asked = _drawn(500, rng)
    return surrogate.predict(asked), _truth(asked)


@pytest.mark.parametrize("seed", range(4))
def test_it_learns_from_runs_what_others_will_show(seed: int) -> None:
    """40 of 180 noisy points tell the others to a tenth, where points differ by half; more trials tell more."""
    few, truth_few = _after(10, seed)
    many, truth_many = _after(40, seed)
    error = np.sqrt(np.mean((many.mean - truth_many) ** 2))
    assert error < 0.15 < 0.4 * np.std(truth_many) * 2
    assert error < np.sqrt(np.mean((few.mean - truth_few) ** 2))


@pytest.mark.parametrize("count", [15, 25, 40])
def test_it_knows_how_little_it_knows(count: int) -> None:
    """Two standard deviations hold most of what it has not seen, after few trials and after many."""
    held = [
        np.mean(np.abs(posterior.mean - truth) < 2 * posterior.sd)
        for posterior, truth in (_after(count, seed) for seed in range(4))
    ]
    assert np.mean(held) > 0.8


def test_a_cliff_between_neighbours_is_learned() -> None:
    """Fast up to the third value and slow from the fourth on: both sides are known after a few trials near it."""
    points = np.array([[n, m, 0, 0] for n in (0, 2, 3, 5) for m in (0, 2, 4)])
    surrogate = _fitted(points, np.where(points[:, 0] <= 2, 0.0, -1.0))
    posterior = surrogate.predict(np.array([[1, 1, 0, 0], [4, 3, 0, 0]]))
    assert posterior.mean[0] > -0.3
    assert posterior.mean[1] < -0.7


def test_advice_is_the_mean_as_long_as_nothing_is_known_and_gives_way_to_trials() -> None:
    """An expected gain of a half is expected where it was not tried, and forgotten where trials show none."""
    advice = [np.array([0.0] + [0.5] * 5), *(np.zeros(size) for size in SIZES[1:])]
    surrogate = GaussianProcess(SPACE, advice)
    ahead = np.array([[5, 0, 0, 0]])
    surrogate.fit(TrainingData(points=np.zeros((1, 4), dtype=np.int64), scores=np.zeros(1), variances=np.full(1, 0.01)))
    assert surrogate.predict(ahead).mean[0] > 0.2
    tried = np.array([[n, m, 0, 0] for n in (0, 1, 3) for m in (0, 2, 4)])
    for _ in range(5):
        surrogate.fit(TrainingData(points=tried, scores=np.zeros(9), variances=np.full(9, 0.01)))
    assert surrogate.predict(ahead).mean[0] < 0.1


def test_chances_fall_with_failures_nearby_and_never_to_nothing() -> None:
    """Where everything failed success is unlikely, further away it is less so, and a success raises it again."""
    space = Space(knobs=(knob("a", *range(12)), knob("b", *range(4))))
    model = SuccessProbability(space)
    failed = [(place, other) for place in (0, 1) for other in range(4)]
    worked = [(place, 1) for place in (9, 10, 11)]
    points, successes = np.array([*failed, *worked]), np.array([False] * len(failed) + [True] * len(worked))
    model.fit(points, successes)
    asked = np.array([(0, 0), (3, 0), (6, 0), (10, 0)])
    chances = model.predict(asked)
    assert list(chances) == sorted(chances)
    assert 0.0 < chances[0] < 0.15
    assert chances[-1] > 0.85
    model.fit(np.vstack([points, [[3, 1]]]), np.append(successes, True))
    assert model.predict(asked)[1] > chances[1] + 0.1
