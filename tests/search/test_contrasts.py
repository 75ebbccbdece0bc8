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
