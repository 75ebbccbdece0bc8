"""Speed that a study has confirmed for a point, and where the next training is expected."""

import math
from dataclasses import replace

import pytest

from autotune.daemon.drift import confirmed_speed
from autotune.records import Purpose, TrialRecord
from tests.study.storages import record


def _trial(number: int, point: str, speed: float, purpose: Purpose = Purpose.CONFIRM, **fields: float) -> TrialRecord:
    measurement = replace(record().measurement, samples_per_s=speed, **fields)
    return replace(record(), number=number, point=point, purpose=purpose, measurement=measurement)


def test_the_interval_is_that_of_one_more_training() -> None:
    """The mean is geometric; with few trials the usual spread of 8 % counts most."""
    confirmed = confirmed_speed([_trial(n, "a", speed) for n, speed in enumerate((90.0, 100.0, 111.1))], "a")
    assert confirmed.samples_per_s == pytest.approx(100.0, rel=1e-3)
    assert 0.75 < confirmed.low < 0.85
    assert confirmed.high == pytest.approx(1 / confirmed.low)
    assert confirmed.trials == 3


def test_more_trials_narrow_the_interval() -> None:
    """A steady machine with many repeats is told apart from a noisy one."""
    steady = confirmed_speed([_trial(n, "a", 100.0 * math.exp(0.02 * (-1) ** n)) for n in range(40)], "a")
    assert 0.9 < steady.low < 0.95


def test_other_points_validations_and_outliers_do_not_count() -> None:
    """What was disturbed, longer, or of other values says nothing; once is not confirmed."""
    records = [_trial(0, "a", 100.0), _trial(1, "b", 50.0), _trial(2, "a", 10.0, Purpose.VALIDATE)]
    assert confirmed_speed(records, "a") is None
    assert confirmed_speed(records, "c") is None
    records += [_trial(3, "a", 102.0), _trial(4, "a", 40.0)]
    confirmed = confirmed_speed(records, "a", samples_per_step=8.0)
    assert (confirmed.trials, confirmed.samples_per_step) == (2, 8.0)
    assert confirmed.samples_per_s == pytest.approx(101.0, rel=1e-3)


def test_a_speed_with_filled_caches_says_so() -> None:
    """Real training reaches it after its first pass only."""
    records = [_trial(n, "a", 100.0, filled_samples_per_s=150.0) for n in range(2)]
    confirmed = confirmed_speed(records, "a")
    assert confirmed.after_first_pass
    assert confirmed.samples_per_s == pytest.approx(150.0)
