"""Random forest with expected improvement, the model of SMAC (Hutter, Hoos & Leyton-Brown 2011), on scikit-learn's.

Ten random points come first. Then each point is the best of a thousand random ones and of all that differ in one value
from the five best. What did not run counts as the slowest that did.
"""

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from autotune.space.space import Space
from scripts.bench.peers.methods import Proposals

_RANDOM_POINTS = 10
_ANYWHERE = 1_000
_BEST = 5

_Array = NDArray[np.float64]
_Point = tuple[int, ...]  # positions among the choices


def forest(space: Space, seed: int) -> Proposals:
    """Propose by expected improvement of ln speed, by the mean and the spread of the trees; no point twice."""
    rng = random.Random(seed)
    baseline = space.indices(space.baseline)
    speeds: dict[_Point, float | None] = {baseline: (yield space.baseline)}
    while len(speeds) < space.size:
        logs = {point: math.log(speed) for point, speed in speeds.items() if speed}
        new = _candidates(space, sorted(logs, key=lambda point: -logs[point])[:_BEST], rng)
        new = [point for point in new if point not in speeds]
        if not new:
            continue
        chosen = new[0]
        if len(speeds) > _RANDOM_POINTS and logs:
            model = RandomForestRegressor(random_state=rng.getrandbits(31))
            worst = min(logs.values())
            model.fit(_coded(space, list(speeds)), [logs.get(point, worst) for point in speeds])
            codes = _coded(space, new).astype(np.float32)
            trees = np.array([tree.predict(codes) for tree in model.estimators_])
            chosen = new[int(np.argmax(_improvement(trees.mean(axis=0), trees.std(axis=0), max(logs.values()))))]
        speeds[chosen] = yield space.at(chosen)


def _candidates(space: Space, best: Sequence[_Point], rng: random.Random) -> list[_Point]:
    """Return points without duplicates, the random ones first."""
    sizes = [len(knob.choices) for knob in space.knobs]
    points = [tuple(rng.randrange(size) for size in sizes) for _ in range(_ANYWHERE)]
    for point in best:
        for column, size in enumerate(sizes):
            points += [(*point[:column], position, *point[column + 1 :]) for position in range(size)]
    return list(dict.fromkeys(points))


def _coded(space: Space, points: Sequence[_Point]) -> _Array:
    """Return positions where choices are ordered, one column a category where they are not."""
    rows = np.array(points)
    columns = []
    for column, knob in enumerate(space.knobs):
        codes = rows[:, column : column + 1]
        columns.append(codes if knob.ordered else (codes == np.arange(len(knob.choices))))
    return np.hstack(columns).astype(np.float64)


def _improvement(mean: _Array, sd: _Array, best: float) -> _Array:
    """Return the expected improvement over the best."""
    sd = np.maximum(sd, 1e-9)
    distance = (mean - best) / sd
    density = np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi)
    above = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in distance])
    improvement: _Array = sd * (distance * above + density)
    return improvement
