"""When a loss is far above today's."""

import math
from collections.abc import Iterable

import pytest

from autotune.trial.losses import FAR, Losses


def course(losses: Iterable[float], every: int = 1) -> Losses:
    """A trial with these losses, one every so many steps."""
    seen = Losses()
    for number, loss in enumerate(losses):
        seen.add((number + 1) * every, loss)
    return seen


TODAY = course(2.0 * 0.99**n for n in range(100))


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
    """Many times as high as where it began, while today's never was; anything less is let go on."""
    assert course(losses).are_far_above(TODAY) is far


def test_a_hill_that_todays_run_has_too_is_forgiven() -> None:
    """A learning rate that warms up, or a loss whose parts are switched on later."""
    hill = [1.0] * 5 + [50.0] * 20
    assert not course(hill).are_far_above(course(hill))
    assert course(hill).are_far_above(course([1.0] * 40))


def test_only_what_todays_run_had_shown_by_then_counts() -> None:
    """It rose much later today."""
    today = course([1.0] * 40 + [50.0] * 10)
    assert course([1.0] * 5 + [50.0] * 10).are_far_above(today)
    assert not course([1.0] * 5 + [50.0] * 10, every=10).are_far_above(today)


def test_losses_that_are_no_numbers_are_judged_elsewhere() -> None:
    """They are left out here."""
    assert not course([1.0] * 5 + [math.nan, math.inf] * 10).are_far_above(TODAY)


def test_without_losses_of_today_nothing_is_said() -> None:
    """There is nothing to compare with."""
    assert not course([1.0] * 5 + [1e9] * 10).are_far_above(course([]))
