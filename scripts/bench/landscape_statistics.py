"""Statistics of how rugged a landscape is: what a search finds easy on one and hard on another.

A landscape is the true ln speed of all points of a space that run. Three statistics say how far a simple search gets:
one that draws at random, one that believes in main effects, and one that climbs from where it is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEAR = 0.05
"""Share of the best speed that a point near the best, or a descent that is not stuck, leaves unused at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Landscape:
    """Points that run, and their true speeds.

    Attributes:
        positions: Position of each point's value among the choices of each knob, shape (points, knobs).
        logs: True ln speed of each point, shape (points,).
    """

    positions: NDArray[np.int64]
    logs: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Ruggedness:
    """Statistics of a landscape.

    Attributes:
        near_best: Share of the points within `NEAR` of the best, 0..1.
        main_effects_regret: Share of the best speed that the optimum of the main effects leaves unused, 0..1.
        stuck: Share of the points from which a greedy descent ends more than `NEAR` from the best, 0..1.
    """

    near_best: float
    main_effects_regret: float
    stuck: float


def ruggedness(landscape: Landscape) -> Ruggedness:
    """Return the statistics of a landscape; all its points count, so that they are exact."""
    regrets = 1.0 - np.exp(landscape.logs - landscape.logs.max())
    return Ruggedness(
        near_best=float(np.mean(regrets <= NEAR)),
        main_effects_regret=float(regrets[np.argmax(main_effects(landscape))]),
        stuck=float(np.mean(regrets[descents(landscape)] > NEAR)),
    )


def main_effects(landscape: Landscape) -> NDArray[np.float64]:
    """Return the ln speed of each point as an additive model predicts it, fitted to all points by least squares."""
    columns = [np.ones(len(landscape.logs))]
    for places in landscape.positions.T:
        columns += [(places == place).astype(np.float64) for place in np.unique(places)[1:]]
    design = np.column_stack(columns)
    # By the normal equations: there are many points and few effects, confounded ones where points are missing.
    effects: NDArray[np.float64] = np.linalg.pinv(design.T @ design, hermitian=True) @ design.T @ landscape.logs
    return design @ effects


def descents(landscape: Landscape) -> NDArray[np.int64]:
    """Return the point at which the greedy descent from each point ends, shape (points,).

    A descent takes the best change of a single knob, to any other of its values that runs, as long as that is faster.
    """
    ends = _best_neighbours(landscape)
    while np.any(ends != ends[ends]):
        ends = ends[ends]
    return ends


def _best_neighbours(landscape: Landscape) -> NDArray[np.int64]:
    """Return the fastest of each point and those that differ from it in one knob; of equals the point itself."""
    positions, logs = landscape.positions, landscape.logs
    best = np.arange(len(logs))
    counts = positions.max(axis=0) + 1
    ascending = np.argsort(logs, kind="stable")
    for knob in range(positions.shape[1]):
        rest = positions.copy()
        rest[:, knob] = 0
        # Points with the same rest are those that one change of this knob leads to.
        _, line = np.unique(np.ravel_multi_index(tuple(rest.T), tuple(counts)), return_inverse=True)
        fastest = np.zeros(line.max() + 1, dtype=np.int64)
        fastest[line[ascending]] = ascending  # the last one written is the fastest
        best = np.where(logs[fastest[line]] > logs[best], fastest[line], best)
    return best
