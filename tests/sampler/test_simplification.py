"""Simplification: changes that are not believed to matter are taken back, one after the other."""

from collections.abc import Mapping, Sequence

from autotune.records import Values
from autotune.sampler.simplification import simplified
from autotune.space.space import Space
from tests.runs import knob

SPACE = Space(knobs=(knob("a", 1, 4), knob("b", False, True), knob("c", "x", "y")))
BASELINE: Values = SPACE.baseline
BEST: Values = {"a": 4, "b": True, "c": "y"}
WORTH: Mapping[str, float] = {"a": 0.5, "b": 0.004, "c": 0.012}


def _believed(points: Sequence[Values]) -> list[float]:
    """Return the sum of what the changes are worth."""
    return [sum(WORTH[path] for path in SPACE.changes(values)) for values in points]


def test_changes_that_do_not_matter_are_taken_back_as_long_as_little_is_lost_in_all() -> None:
    """Losses add up: not each for itself has to be small, but all together."""
    (best,) = _believed([BEST])
    assert simplified(BEST, SPACE, best - 0.001, _believed, lambda _: True) == BEST
    assert simplified(BEST, SPACE, best - 0.01, _believed, lambda _: True) == {**BEST, "b": False}
    assert simplified(BEST, SPACE, best - 0.02, _believed, lambda _: True) == {**BASELINE, "a": 4}
    assert simplified(BEST, SPACE, -1.0, _believed, lambda _: True) == BASELINE


def test_what_cannot_be_tried_is_no_simplification() -> None:
    """A change that another one needs stays with it."""
    (best,) = _believed([BEST])
    needs_b = simplified(BEST, SPACE, best - 0.02, _believed, lambda values: values["b"] is True)
    assert needs_b == {**BEST, "c": "x"}
    assert simplified(BEST, SPACE, -1.0, _believed, lambda _: False) == BEST
