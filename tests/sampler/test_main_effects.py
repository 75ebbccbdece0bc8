"""Main effects: the effect of one value of a knob on its own."""

import pytest

from autotune.sampler.importance import Sample, main_effects

BASELINE = {"batch": 8, "xla": False}


def test_values_that_were_only_tried_together_share_their_effect() -> None:
    """Their sum is known, which of them it is owed to is not."""
    together = {"batch": 16, "xla": True}
    samples = [Sample(values=BASELINE, mean=0.0, trials=20), Sample(values=together, mean=0.4, trials=20)]
    one, other = main_effects(samples, BASELINE, 0.01)
    assert (one.path, other.path) == ("batch", "xla")
    assert one.mean == pytest.approx(other.mean) == pytest.approx(0.2, rel=0.01)
    assert one.sd > 0.2


def test_true_is_another_value_than_one_and_a_whole_float_is_not() -> None:
    """As in a config."""
    samples = [Sample(values={"a": value}, mean=0.0) for value in (1, True, 2.0, 2)]
    assert [effect.choice for effect in main_effects(samples, {"a": 1}, 0.1)] == [True, 2.0]


def test_a_single_point_that_is_not_todays_has_effects_too() -> None:
    """Effects exist without numbers of the baseline, at their prior."""
    (effect,) = main_effects([Sample(values={"a": 2}, mean=0.3)], {"a": 1}, 0.1)
    assert effect.sd == pytest.approx(0.5, rel=0.1)
