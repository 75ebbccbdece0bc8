"""Expert heuristics: their order, and the trials that they build on."""

from typing import Any

from autotune.records import Ending, Values
from autotune.sampler.acquisition import heuristic_proposals
from autotune.sampler.observations import Observation
from autotune.space.knob import InactiveIf, Label
from autotune.space.space import Space
from tests.runs import knob, named, observation

WORKERS = knob("workers", 1, 2, 4, kind="workers", bundled=True, heuristic_values=(4,))
CACHE = knob("cache", "none", "memory", kind="cache", bundled=True, heuristic_values=("memory",))
BATCH = knob("batch", 8, 16, 32, 64, kind="batch_size", label=Label.BATCH, heuristic_values=(32, 64))
PRECISION = knob("precision", "float32", "mixed_float16", kind="precision", heuristic_values=("mixed_float16",))
ECHO = knob("echo", 1, 2, heuristic_values=(2,))
XLA = knob("xla", False, True, kind="xla", heuristic_values=(True,))
SPACE = Space(knobs=(WORKERS, CACHE, BATCH, PRECISION))
BUNDLE: dict[str, Any] = {"workers": 4, "cache": "memory", "batch": 8, "precision": "float32"}


def _first(
    space: Space,
    observations: dict[str, Observation],
    data_wait: float | None = None,
    gpu: bool = False,
    short_passes: bool = True,
) -> Values:
    return next(heuristic_proposals(space, observations, data_wait, has_gpu=gpu, short_passes=short_passes))


def test_the_first_proposal_turns_all_bundled_knobs() -> None:
    """The cheap, safe knobs are turned at once; batch and precision stay as they are."""
    assert _first(SPACE, named(observation(SPACE, 0.0))) == BUNDLE


def test_then_each_advice_is_tried_on_the_best_so_far() -> None:
    """Improvements are kept, one recommended value after the other."""
    observations = named(observation(SPACE, 0.0), observation(SPACE, 0.5, **BUNDLE))
    larger: dict[str, Any] = {**BUNDLE, "batch": 32}
    assert _first(SPACE, observations) == larger
    observations |= named(observation(SPACE, 0.7, **larger))
    assert _first(SPACE, observations) == {**BUNDLE, "batch": 64}
    observations |= named(observation(SPACE, 0.9, **{**BUNDLE, "batch": 64}))
    assert _first(SPACE, observations) == {**BUNDLE, "batch": 64, "precision": "mixed_float16"}


def test_where_a_recommended_value_fails_the_one_half_way_is_tried() -> None:
    """A batch that is too large, once; unless the value works in another trial."""
    space = Space(knobs=(BATCH,))
    observations = named(observation(space, 0.0), observation(space, endings=(Ending.CRASHED,), batch=32))
    assert _first(space, observations) == {"batch": 16}
    observations |= named(observation(space, -0.1, batch=16))
    assert not list(heuristic_proposals(space, observations, None, has_gpu=False, short_passes=True))


def test_what_a_value_needs_is_turned_along() -> None:
    """XLA is suggested together with the graph mode that it needs."""
    space = Space(knobs=(knob("graph", False, True, kind="graph_mode"), XLA, knob("n", 1, 2, 3)))
    assert _first(space, named(observation(space, 0.0))) == {"graph": True, "xla": True, "n": 1}


def test_a_loop_that_waits_for_data_is_advised_on_its_loader_first() -> None:
    """Much data wait: what feeds the step comes first; little: what makes the step itself faster."""
    space = Space(knobs=(BATCH, ECHO))
    observations = named(observation(space, 0.0))
    assert _first(space, observations, data_wait=0.8) == {"batch": 8, "echo": 2}
    assert _first(space, observations, data_wait=0.1) == {"batch": 32, "echo": 1}


def test_without_data_wait_on_a_gpu_the_loader_is_left_alone_at_first() -> None:
    """A GPU that never waits gains nothing from a faster loader; on a CPU both share the cores, and it may."""
    observations = named(observation(SPACE, 0.0))
    assert _first(SPACE, observations, data_wait=0.01, gpu=True) == {**SPACE.baseline, "batch": 32}
    assert _first(SPACE, observations, data_wait=0.01, gpu=False) == BUNDLE


def test_a_cache_comes_last_where_a_pass_over_the_data_is_long() -> None:
    """Every trial with it would wait for a whole pass: all else is suggested first, unless trials see passes anyway."""
    cache = knob(
        "cache", "none", "memory", kind="cache", bundled=True, heuristic_values=("memory",), settling=("memory",)
    )
    space = Space(knobs=(WORKERS, cache, BATCH))
    observations = named(observation(space, 0.0))
    assert _first(space, observations, short_passes=True) == {"workers": 4, "cache": "memory", "batch": 8}
    assert _first(space, observations, short_passes=False) == {"workers": 4, "cache": "none", "batch": 8}
    observations |= named(observation(space, 0.2, workers=4), observation(space, 0.3, workers=4, batch=32))
    observations |= named(observation(space, 0.2, workers=4, batch=64))
    assert _first(space, observations, short_passes=False) == {"workers": 4, "cache": "memory", "batch": 32}


def test_a_knob_without_effect_is_not_advised_until_it_has_one() -> None:
    """The depth of a buffer between GPUs waits for a placement that has one, and is in no bundle before."""
    placement = knob("placement", "one", "two", heuristic_values=("two",))
    inert = InactiveIf(path="placement", values=("one",))
    depth = knob("depth", 16, 4, bundled=True, heuristic_values=(4,), inactive_if=inert)
    space = Space(knobs=(placement, depth))
    observations = named(observation(space, 0.0))
    apart: dict[str, Any] = {"placement": "two", "depth": 16}
    proposals = heuristic_proposals(space, observations, None, has_gpu=True, short_passes=True)
    assert list(proposals) == [apart]
    observations |= named(observation(space, 0.5, **apart))
    assert _first(space, observations) == {**apart, "depth": 4}
