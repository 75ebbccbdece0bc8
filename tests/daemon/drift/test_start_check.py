"""Check of a training's first minutes against what was confirmed."""

from dataclasses import replace

import pytest

from autotune.daemon.drift import PaceChange, StartCheck
from autotune.trial.pace_files import PaceWindow
from autotune.trial.trainings import ConfirmedSpeed

_CONFIRMED = ConfirmedSpeed(samples_per_s=100.0, low=0.93, high=1.07, trials=8)


def _window(number: int, speed: float | None, *, epochs: int = 0, steps: int = 20) -> PaceWindow:
    times = {"t0_s": 10.0 * number, "t1_s": 10.0 * (number + 1), "train_s": 10.0}
    samples = None if speed is None else 10.0 * speed
    return PaceWindow(process="1.0", steps=steps, samples=samples, epochs=epochs, **times)


def _found(check: StartCheck, speeds: list[float | None], *, epoch_at: int = -1) -> list[PaceChange]:
    found = [check.add(_window(n, speed, epochs=n == epoch_at)) for n, speed in enumerate(speeds)]
    return [one for one in found if one is not None]


def test_a_slow_start_is_said_once_within_minutes() -> None:
    """It is outside of the interval in both looks: 81 % of what was measured."""
    (slow,) = _found(StartCheck(_CONFIRMED), [81.0] * 100)
    assert slow.speed_ratio == pytest.approx(0.81)
    assert slow.t_s <= 360


@pytest.mark.parametrize("speed", [94.0, 100.0, 140.0])
def test_a_training_inside_the_interval_or_faster_is_all_right(speed: float) -> None:
    """Nothing is said, neither then nor later."""
    check = StartCheck(_CONFIRMED)
    assert _found(check, [speed] * 20 + [10.0] * 100) == []


def test_one_slow_look_is_not_enough() -> None:
    """A phase of two minutes at the start passes."""
    assert _found(StartCheck(_CONFIRMED), [80.0] * 18 + [99.0] * 40) == []


def test_a_speed_with_full_caches_is_compared_after_the_first_pass() -> None:
    """The first epoch is slower, and that is said by nobody."""
    confirmed = replace(_CONFIRMED, after_first_pass=True)
    assert _found(StartCheck(confirmed), [60.0] * 100 + [99.0] * 60, epoch_at=100) == []


def test_the_batch_size_of_the_config_stands_in_for_samples() -> None:
    """Steps without samples are counted as the trials' were."""
    confirmed = ConfirmedSpeed(samples_per_s=16.0, low=0.9, high=1.1, trials=4, samples_per_step=8.0)
    assert _found(StartCheck(confirmed), [None] * 60) == []
    (slow,) = _found(StartCheck(replace(confirmed, samples_per_s=32.0)), [None] * 60)
    assert slow.speed_ratio == pytest.approx(0.5)


def test_without_a_confirmed_speed_nothing_is_found() -> None:
    """There is nothing to compare with."""
    assert _found(StartCheck(None), [1.0] * 100) == []
