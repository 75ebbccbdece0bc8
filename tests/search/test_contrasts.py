"""Speed ratios of neighbours, by the model of the search."""

import math
import random

import pytest

from autotune.records import Values
from autotune.search.worth import speed_ratios
from autotune.space.space import Space
from tests.runs import knob

SPACE = Space(knobs=(knob("batch", 8, 16, 32, 64), knob("workers", 1, 2, 4), knob("xla", False, True)))
BEST: Values = {"batch": 32, "workers": 2, "xla": True}
SMALLER: Values = {**BEST, "batch": 8}


def _speed(values: Values) -> float:
    return (0.3 * math.log(int(values["batch"] or 1))) + (0.2 if values["xla"] else 0.0)


def _trials(seed: int = 0, sd: float = 0.0) -> list[tuple[Values, float]]:
    """Two trials of each of half of the points, drawn at random, and of the best."""
    rng = random.Random(seed)
    points = [
        {"batch": batch, "workers": workers, "xla": xla}
        for batch in (8, 16, 32, 64) for workers in (1, 2, 4) for xla in (False, True)
    ]  # fmt: skip
    some: list[Values] = [BEST, *(point for point in rng.sample(points, 12) if point not in (BEST, SMALLER))]
    return [(values, _speed(values) + rng.gauss(0.0, sd)) for values in some * 2]


def test_a_point_that_was_never_measured_is_predicted_from_those_like_it() -> None:
    """With an interval that holds the truth, also where trials are noisy."""
    truth = math.exp(0.3 * math.log(4))
    (ratio,) = speed_ratios(_trials(), BEST, [SMALLER], SPACE, sd=0.02)
    assert ratio.ratio == pytest.approx(truth, rel=0.05)
    for seed in range(5):
        (ratio,) = speed_ratios(_trials(seed, sd=0.05), BEST, [SMALLER], SPACE, sd=0.05)
        assert ratio.low < truth < ratio.high


def test_trials_of_its_own_outweigh_the_model() -> None:
    """A cliff that nothing else shows is believed where it was measured ten times, and the interval is narrow."""
    measured = [*_trials(), *[(SMALLER, _speed(BEST) - 1.0)] * 10, *[(BEST, _speed(BEST))] * 10]
    (guessed,) = speed_ratios(_trials(), BEST, [SMALLER], SPACE, sd=0.05)
    (ratio,) = speed_ratios(measured, BEST, [SMALLER], SPACE, sd=0.05)
    assert ratio.ratio == pytest.approx(math.e, rel=0.1)
    assert ratio.high / ratio.low < guessed.high / guessed.low


def test_a_trial_that_something_slowed_down_does_not_count() -> None:
    """One of three at half the speed: the other two say how fast the point is."""
    slowed = [*_trials(), *[(SMALLER, _speed(SMALLER))] * 2]
    (usual,) = speed_ratios(slowed, BEST, [SMALLER], SPACE, sd=0.05)
    (ratio,) = speed_ratios([*slowed, (SMALLER, _speed(SMALLER) - 0.7)], BEST, [SMALLER], SPACE, sd=0.05)
    assert ratio == usual


def test_many_points_are_more_than_the_model_takes_and_those_asked_for_stay() -> None:
    """Of 1,000 points the most alike count; one far away counts if it is asked for."""
    space = Space(knobs=tuple(knob(name, *range(10)) for name in "abc"))
    points: list[Values] = [space.at((i, j, k)) for i in range(10) for j in range(10) for k in range(10)]
    trials = [(values, 0.1 * int(values["a"] or 0)) for values in points] * 3
    far = space.at((9, 9, 9))
    (near_ratio, far_ratio) = speed_ratios(trials, space.at((0, 0, 0)), [space.at((5, 0, 0)), far], space, sd=0.02)
    assert near_ratio.ratio == pytest.approx(math.exp(-0.5), rel=0.03)
    assert far_ratio.ratio == pytest.approx(math.exp(-0.9), rel=0.03)
