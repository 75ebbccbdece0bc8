"""Losses compared with those of the baseline."""

import math
from collections.abc import Iterable

import pytest

from autotune.trial.outcome import FAR, Losses


def losses_of(losses: Iterable[float], every: int = 1) -> Losses:
    """Losses of a trial, reported every so many steps."""
    seen = Losses()
    for number, loss in enumerate(losses):
        seen.add((number + 1) * every, loss)
    return seen


BASELINE = losses_of(2.0 * 0.99**n for n in range(100))


@pytest.mark.parametrize(
    ("losses", "far"),
    [
        ([2.0] * 3 + [2.0 * 1.1 * FAR] * 5, True),
        ([2.0] * 3 + [2.0 * 0.9 * FAR] * 5, False),
        ([256.0] * 3 + [2000.0] * 5, False),
        ([2.0] * 10 + [1e9] + [2.0] * 5, False),
        ([2.0] * 3 + [1e9] * 4, False),
        ([-2.0] * 3 + [1e9] * 5, False),
        ([], False),
    ],
    ids=["far", "not far", "a sum over a larger batch", "one bad batch", "too few", "no zero", "none"],
)
def test_far_above(losses: list[float], far: bool) -> None:
    """Many times as high as where it began, while the baseline's never was; less than that is allowed."""
    assert losses_of(losses).are_far_above(BASELINE) is far


def test_a_hill_that_the_baseline_has_too_is_forgiven() -> None:
    """A learning rate that warms up, or a loss whose parts are switched on later."""
    hill = [1.0] * 5 + [50.0] * 20
    assert not losses_of(hill).are_far_above(losses_of(hill))
    assert losses_of(hill).are_far_above(losses_of([1.0] * 40))


@pytest.mark.parametrize(
    ("losses", "none"),
    [
        ((), False),
        ((0.5, math.nan), True),
        ((0.5, math.inf, math.inf, 0.4), False),
        ((math.inf, math.inf, 0.4), True),
        ((0.5, math.nan, 0.4), False),
    ],
)
def test_losses_are_no_numbers_if_the_last_or_most_are_none(losses: tuple[float, ...], none: bool) -> None:
    """A single bad batch is no divergence."""
    seen = Losses()
    for step, loss in enumerate(losses):
        seen.add(step, loss)
    assert seen.are_no_numbers is none


def test_the_level_is_that_before_a_step_relative_to_the_beginning() -> None:
    """A loss that halves every 50 steps, at its end and halfway."""
    falling = losses_of(4.0 * 0.5 ** (n / 50) for n in range(200))
    end, half = falling.level(200), falling.level(100)
    assert end.ratio == pytest.approx(0.5 ** (175 / 50), rel=0.05)
    assert half.ratio == pytest.approx(0.5 ** (87 / 50), rel=0.05)
    assert end.error < 0.01
