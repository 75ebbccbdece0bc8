"""Simplification: changes that are not believed to matter are taken back, one after the other."""

from collections.abc import Mapping, Sequence

from autotune.records import Values
from autotune.sampler.importance import simplified
from autotune.space.knob import InertUnder
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


def test_a_change_goes_with_the_one_that_it_has_an_effect_under() -> None:
    """Alone the placement cannot be taken back, and the buffer's depth is worth something as long as there is one."""
    inert = InertUnder(path="placement", values=("one",))
    space = Space(knobs=(knob("placement", "one", "two"), knob("depth", 16, 4, inert_under=inert)))
    speeds = {("one", 16): 0.0, ("two", 16): -0.2, ("two", 4): 0.01}

    def believed(points: Sequence[Values]) -> list[float]:
        return [speeds[str(values["placement"]), int(values["depth"] or 0)] for values in points]

    best: Values = {"placement": "two", "depth": 4}
    assert simplified(best, space, -0.01, believed, lambda _: True) == space.baseline
    assert simplified(best, space, 0.01, believed, lambda _: True) == best
