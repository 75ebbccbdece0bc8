"""Candidate points of the acquisition: all of a small space, else neighbours of the best points and random draws."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from autotune.records import Values
from autotune.sampler.gaussian_process import Indices
from autotune.space.space import Space

LISTED_POINTS = 2_000
"""Largest space, in points, that is enumerated as a whole."""

_PAIRS = 300  # points two changes away from one of the best, drawn at random
_ANYWHERE = 300  # points drawn from the whole space


def candidates(space: Space, best: Sequence[Values], rng: np.random.Generator) -> Indices:
    """Return the candidates: the whole of a small space, else points around the best ones and random ones.

    Args:
        space: The search space.
        best: The points whose neighbourhoods are candidates, as knob values.
        rng: Random generator for spaces that are not enumerated.

    Returns:
        One row for each point, as positions among the choices of each knob, without duplicates; points that cannot work
        are included.
    """
    sizes = [len(knob.choices) for knob in space.knobs]
    if space.size <= LISTED_POINTS:
        return np.array(list(product(*(range(size) for size in sizes))), dtype=np.int64).reshape(space.size, len(sizes))
    anywhere = np.column_stack([rng.integers(0, size, _ANYWHERE) for size in sizes])
    found = [anywhere]
    for values in best:
        center = np.array(space.indices(values))
        found.append(_neighbours(center, sizes))
        pairs = np.tile(center, (_PAIRS // len(best), 1))
        for row in pairs:
            for column in rng.choice(len(sizes), size=min(2, len(sizes)), replace=False):
                row[column] = rng.integers(0, sizes[column])
        found.append(pairs)
    return np.unique(np.concatenate(found), axis=0)


def _neighbours(center: Indices, sizes: Sequence[int]) -> Indices:
    """Return all points that differ from this one in one knob at most."""
    rows = np.tile(center, (sum(sizes), 1))
    number = 0
    for column, size in enumerate(sizes):
        rows[number : number + size, column] = np.arange(size)
        number += size
    return rows
