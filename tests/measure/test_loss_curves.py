"""Loss curves: what is read from the losses of one training."""

import math
import random
from collections.abc import Callable

import pytest

from autotune.measure.loss_curves import fall_at, level_at, loss_curve, time_of, time_to
from autotune.records import LossCurve, TraineeEvent


def training(loss: Callable[[float], float], *, steps: int = 2000, step_s: float = 0.01, every: int = 1) -> LossCurve:
    """Curve of a training of 8 samples a step that reports a loss every so many steps."""
    events = [
        TraineeEvent(
            kind="step", t_s=100.0 + step_s * step, stream="1.0", samples=8.0,
            loss=loss(step_s * step) if step % every == 0 else None,
        )
        for step in range(steps)
    ]  # fmt: skip
    curve, _ = loss_curve(events, math.inf)
    assert curve is not None
    return curve


def test_a_level_is_the_mean_of_the_late_part() -> None:
    """Of the last quarter of the time, whatever came before."""
    curve = training(lambda t_s: 5.0 if t_s < 10.0 else 2.0)
    assert level_at(curve, 20.0).mean == pytest.approx(2.0)
    assert level_at(curve, 9.0).mean == pytest.approx(5.0)


def test_the_error_of_a_level_is_that_of_the_mean_of_its_losses() -> None:
    """Also where the loss falls."""
    rng = random.Random(1)
    for slope in (0.0, -0.02):
        levels = [
            level_at(training(lambda t_s, by=slope: by * t_s + rng.gauss(3.0, 1.0)), 20.0)  # type: ignore[misc]
            for _ in range(20)
        ]
        spread = math.sqrt(sum((one.mean - 3.0 - slope * 17.5) ** 2 for one in levels) / len(levels))
        errors = [one.error for one in levels if one.error is not None]
        assert spread == pytest.approx(sum(errors) / len(errors), rel=0.3)


def test_samples_and_times_are_told_from_one_another() -> None:
    """By the steps."""
    curve = training(lambda _t_s: 1.0)
    assert time_of(curve, 800.0) == pytest.approx(1.0, abs=0.02)
    assert time_of(curve, 0.0) == 0.0
    assert time_of(curve, 1e9) == curve.ends_s[-1]


def test_a_loss_falls_with_the_logarithm_of_time() -> None:
    """By its slope."""
    curve = training(lambda t_s: 3.0 - 0.5 * math.log(t_s + 1e-9))
    assert fall_at(curve, 19.0) == pytest.approx(0.5, rel=0.05)


def test_the_time_to_a_level_is_when_the_mean_of_the_curves_comes_to_it() -> None:
    """None if it never does."""
    curves = [training(lambda t_s: 3.0 - t_s / 10.0), training(lambda t_s: 3.2 - t_s / 10.0)]
    assert time_to(curves, 2.1, 19.9) == pytest.approx(10.0 / 0.875, rel=0.05)
    assert time_to(curves, 0.5, 19.9) is None
