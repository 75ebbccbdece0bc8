"""Statistics of landscapes, on small ones with known answers."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from scripts.bench.landscape_statistics import Landscape, descents, main_effects, ruggedness


def landscape(speed: Callable[..., float | None], *counts: int) -> Landscape:
    """The landscape of a function of positions; None does not run."""
    speeds = {point: speed(*point) for point in product(*map(range, counts))}
    runs = {point: found for point, found in speeds.items() if found is not None}
    return Landscape(positions=np.array(list(runs)), logs=np.log(list(runs.values())))


def test_an_additive_landscape_is_kind() -> None:
    """Main effects say all, each descent ends at the best, one point in twelve is near it."""
    kind = landscape(lambda one, other: math.exp(0.1 * one + 0.5 * other), 4, 3)
    found = ruggedness(kind)
    assert found.near_best == pytest.approx(1 / 12)
    assert found.main_effects_regret == pytest.approx(0.0)
    assert found.stuck == 0.0
    assert main_effects(kind) == pytest.approx(kind.logs)


def test_two_peaks() -> None:
    """Of four points (1, 1) is best, (0, 0) is 20 % off, and of those between each descent takes the better one."""
    peaks = landscape(lambda one, other: {(0, 0): 0.8, (1, 1): 1.0}.get((one, other), 0.5), 2, 2)
    assert list(descents(peaks)) == [0, 3, 3, 3]
    found = ruggedness(peaks)
    assert (found.near_best, found.stuck) == (0.25, 0.25)


def test_the_optimum_of_the_main_effects_misses_a_peak_that_stands_alone() -> None:
    """Row 2 is fastest on average, and its point is 30 % slower than the one in row 0."""
    lone = landscape(lambda row, column: 1.0 if (row, column) == (0, 0) else (0.1, 0.5, 0.7)[row], 3, 4)
    assert ruggedness(lone).main_effects_regret == pytest.approx(0.3)


def test_what_is_within_five_percent_is_near_and_not_stuck() -> None:
    """Two peaks, one of them 4 % off."""
    peaks = landscape(lambda one, other: {(0, 0): 0.96, (1, 1): 1.0}.get((one, other), 0.5), 2, 2)
    found = ruggedness(peaks)
    assert (found.near_best, found.stuck) == (0.5, 0.0)


def test_a_change_reaches_all_values_of_its_knob() -> None:
    """A valley between the lowest and the highest value of a knob stops no descent."""
    assert ruggedness(landscape(lambda one: (0.8, 0.2, 1.0)[one], 3)).stuck == 0.0


def test_points_that_do_not_run_are_no_steps() -> None:
    """Without the points between, each of the two peaks is an end."""
    apart = landscape(lambda one, other: (0.5, 1.0)[one] if one == other else None, 2, 2)
    assert list(descents(apart)) == [0, 1]
    assert ruggedness(apart).stuck == 0.5
    assert ruggedness(apart).main_effects_regret == pytest.approx(0.0)


def test_a_plateau_ends_a_descent() -> None:
    """Points of the same speed do not lead to each other."""
    assert list(descents(landscape(lambda *_: 1.0, 3, 2))) == list(range(6))


def test_descents_are_those_of_a_walk_step_by_step() -> None:
    """On a random landscape with a third of its points missing."""
    rng = np.random.default_rng(3)
    speeds = {point: rng.lognormal() if rng.random() < 0.67 else None for point in product(range(4), range(3), (0, 1))}
    one = landscape(lambda *point: speeds[point], 4, 3, 2)
    logs = dict(zip(map(tuple, one.positions), one.logs, strict=True))

    def end(point: tuple[int, ...]) -> tuple[int, ...]:
        near = [other for other in logs if sum(a != b for a, b in zip(point, other, strict=True)) <= 1]
        best = max(near, key=lambda other: logs[other])
        return point if best == point else end(best)

    ends = [end(tuple(point)) for point in one.positions]
    assert [tuple(one.positions[row]) for row in descents(one)] == ends
