"""Which new point is tried next."""

import time
from typing import Any

import pytest

from autotune.records import Ending, Scalar, Values
from autotune.search.levels import PointLevel
from autotune.search.propose import advised, propose
from autotune.space.knob import Label
from autotune.space.space import Space, point_name
from tests.search.conftest import knob, level, named

WORKERS = knob("workers", 1, 2, 4, kind="workers", bundled=True, advice=(4,))
CACHE = knob("cache", "none", "memory", kind="cache", bundled=True, advice=("memory",))
BATCH = knob("batch", 8, 16, 32, 64, kind="batch_size", label=Label.BATCH, advice=(32, 64))
PRECISION = knob("precision", "float32", "mixed_float16", kind="precision", advice=("mixed_float16",))
XLA = knob("xla", False, True, kind="xla", advice=(True,))
SPACE = Space(knobs=(WORKERS, CACHE, BATCH, PRECISION))
BUNDLE: dict[str, Any] = {"workers": 4, "cache": "memory", "batch": 8, "precision": "float32"}


def _all(space: Space, seed: int = 0) -> list[Values]:
    """Everything that is proposed when every point turns out as good as today's."""
    levels = named(level(space, 0.0))
    proposed: list[Values] = []
    while (values := propose(space, levels, seed)) is not None:
        assert point_name(values) not in levels
        proposed.append(values)
        levels.update(named(level(space, 0.0, **dict[str, Any](values))))
    return proposed


def test_the_first_proposal_turns_all_bundled_knobs() -> None:
    """The cheap, safe knobs are turned at once; batch and precision stay as they are."""
    assert propose(SPACE, named(level(SPACE, 0.0)), 0) == BUNDLE


def test_then_each_advice_is_tried_on_the_best_so_far() -> None:
    """What helped is kept, one piece of advice after the other."""
    levels = named(level(SPACE, 0.0), level(SPACE, 0.5, **BUNDLE))
    larger: dict[str, Any] = {**BUNDLE, "batch": 32}
    assert propose(SPACE, levels, 0) == larger
    levels |= named(level(SPACE, 0.7, **larger))
    assert propose(SPACE, levels, 0) == {**BUNDLE, "batch": 64}
    levels |= named(level(SPACE, 0.9, **{**BUNDLE, "batch": 64}))
    assert propose(SPACE, levels, 0) == {**BUNDLE, "batch": 64, "precision": "mixed_float16"}


def test_more_of_what_did_not_help_is_not_advised() -> None:
    """Where a larger batch was slower, the next larger one has to wait: the next advice comes first."""
    levels = named(level(SPACE, 0.0), level(SPACE, 0.5, **BUNDLE), level(SPACE, 0.4, **{**BUNDLE, "batch": 32}))
    assert propose(SPACE, levels, 0) == {**BUNDLE, "precision": "mixed_float16"}


def test_advice_is_on_todays_values_where_the_bundle_was_worse() -> None:
    """A bundle that hurts is not carried along."""
    levels = named(level(SPACE, 0.0), level(SPACE, -0.7, **BUNDLE))
    assert propose(SPACE, levels, 0) == {**SPACE.today, "batch": 32}


def test_a_config_that_holds_all_advice_goes_on_with_the_sampler() -> None:
    """Where today's values are what an expert would choose, something else is proposed."""
    space = Space(knobs=(knob("workers", 4, 1, 2, kind="workers", bundled=True, advice=(4,)),))
    levels = named(level(space, 0.0))
    assert list(advised(space, levels)) == []
    assert propose(space, levels, 0) in ({"workers": 1}, {"workers": 2})


def test_what_a_value_needs_is_turned_along() -> None:
    """XLA is advised together with the graph mode that it needs, and is never proposed without it."""
    space = Space(knobs=(knob("graph", False, True, kind="graph_mode"), XLA, knob("n", 1, 2, 3)))
    proposed = _all(space)
    assert proposed[0] == {"graph": True, "xla": True, "n": 1}
    assert all(values["graph"] for values in proposed if values["xla"])


@pytest.mark.parametrize("seed", range(5))
def test_a_small_space_is_tried_out_each_point_once(seed: int) -> None:
    """Every combination is proposed exactly once, today's never, and then there is nothing more."""
    space = Space(knobs=(WORKERS, CACHE))
    proposed = _all(space, seed)
    assert len({point_name(values) for values in proposed}) == len(proposed) == space.size - 1


@pytest.mark.parametrize("sizes", [(3, 2, 4, 2), (4, 4, 4), (6, 6, 6)])
def test_a_larger_space_is_tried_out_too(sizes: tuple[int, ...]) -> None:
    """Every combination is proposed exactly once before there is nothing more."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(size)) for i, size in enumerate(sizes)))
    assert len(_all(space)) == space.size - 1


def test_the_same_seed_proposes_the_same() -> None:
    """A search can be repeated; another seed takes another way."""
    space = Space(knobs=(WORKERS, CACHE, knob("n", 1, 2)))
    assert _all(space, 1) == _all(space, 1)
    assert _all(space, 1) != _all(space, 2)


def _after_out_of_memory(**point: Scalar) -> list[Values]:
    """All that is proposed once that point has run out of GPU memory."""
    space = Space(knobs=(BATCH, PRECISION, knob("n", 1, 2)))
    levels = named(level(space, 0.0), level(space, endings=(Ending.OUT_OF_GPU_MEMORY,), **point))
    proposed: list[Values] = []
    while (values := propose(space, levels, 0)) is not None:
        proposed.append(values)
        levels |= named(level(space, -0.1, **dict[str, Any](values)))
    return proposed


def test_out_of_memory_rules_out_larger_batches_of_the_same_precision() -> None:
    """What must fail because less has failed is not tried; half the precision needs less, and is."""
    proposed = _after_out_of_memory(batch=32)
    assert {values["batch"] for values in proposed if values["precision"] == "float32"} == {8, 16}
    assert {values["batch"] for values in proposed if values["precision"] == "mixed_float16"} >= {32, 64}


def test_out_of_memory_says_nothing_about_smaller_batches_and_other_precisions() -> None:
    """Only batches at least as large, computed alike, are ruled out."""
    proposed = _after_out_of_memory(batch=64, precision="mixed_float16")
    assert {values["batch"] for values in proposed if values["precision"] == "mixed_float16"} == {8, 16, 32}
    assert 64 in {values["batch"] for values in proposed if values["precision"] == "float32"}


def test_one_out_of_memory_among_good_runs_rules_nothing_out() -> None:
    """A point that has worked, and failed once because someone else was on the GPU, is no proof."""
    space = Space(knobs=(BATCH,))
    levels = named(level(space, 0.0), level(space, 0.2, endings=(Ending.OUT_OF_GPU_MEMORY,), batch=16))
    assert propose(space, levels, 0) == {"batch": 32}


def test_out_of_memory_at_a_batch_that_works_rules_nothing_else_out() -> None:
    """Today's batch runs: it was something else of that point that took the memory."""
    space = Space(knobs=(BATCH, knob("workers", 1, 2)))
    levels = named(level(space, 0.0), level(space, endings=(Ending.OUT_OF_GPU_MEMORY,), workers=2))
    assert propose(space, levels, 0) == {"batch": 32, "workers": 1}


def test_a_crash_is_taught_to_the_sampler() -> None:
    """Where one value of a knob always crashes, the sampler turns away from it."""
    space = Space(knobs=(knob("bad", False, True), knob("a", *range(20)), knob("b", *range(20))))
    levels = named(
        level(space, 0.0),
        *(level(space, 0.1, a=i, b=19 - i) for i in range(20)),
        *(level(space, endings=(Ending.CRASHED,), bad=True, a=i, b=i) for i in range(20)),
    )
    tried = [propose(space, levels, seed) for seed in range(20)]
    assert sum(values is not None and values["bad"] is True for values in tried) <= 5


def test_a_space_without_knobs_has_nothing_to_propose() -> None:
    """No knob, no point but today's."""
    space = Space(knobs=())
    assert propose(space, named(level(space, 0.0)), 0) is None


def test_a_thousand_points_are_no_burden() -> None:
    """The sampler's study is rebuilt for each proposal; with -s this prints what that takes."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(8)) for i in range(8)))
    levels = named(*(_numbered(space, number) for number in range(1000)))
    assert len(levels) == 1000
    began_s = time.perf_counter()
    values = propose(space, levels, 0)
    print(f"one proposal after 1,000 points: {time.perf_counter() - began_s:.2f} s")
    assert values is not None
    assert space.contains(values)
    assert point_name(values) not in levels


def _numbered(space: Space, number: int) -> PointLevel:
    digits: dict[str, Any] = {f"k{i}": (number * 2654435761 >> 3 * i) % 8 for i in range(8)}
    return level(space, sum(digits.values()) / 50, **digits)
