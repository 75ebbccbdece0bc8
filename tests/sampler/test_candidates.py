"""Candidate points: whole small spaces, neighbourhoods of the best points in large ones."""

from typing import Any

import numpy as np

from autotune.sampler.acquisition import LISTED_POINTS, candidates
from autotune.space.space import Space
from tests.runs import knob

SPACE = Space(
    knobs=(
        knob("workers", 1, 2, 4, kind="workers"),
        knob("cache", "none", "memory", kind="cache"),
        knob("batch", 8, 16, 32, 64, kind="batch_size"),
        knob("precision", "float32", "mixed_float16", kind="precision"),
    )
)


def test_a_small_space_is_looked_at_as_a_whole() -> None:
    """Every combination is a candidate, once."""
    rows = candidates(SPACE, [SPACE.baseline], np.random.default_rng(0))
    assert sorted(map(tuple, rows)) == sorted(np.ndindex(3, 2, 4, 2))


def test_of_a_large_space_all_neighbours_of_the_best_points_are_candidates() -> None:
    """No point that differs from a good one in a single knob is overlooked."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(8)) for i in range(8)))
    assert space.size > LISTED_POINTS
    best: list[dict[str, Any]] = [{f"k{i}": 3 for i in range(8)}, {f"k{i}": i for i in range(8)}]
    rows = {tuple(row) for row in candidates(space, best, np.random.default_rng(0))}
    for values in best:
        for i in range(8):
            for choice in range(8):
                assert space.indices({**values, f"k{i}": choice}) in rows
    assert len(rows) < LISTED_POINTS
