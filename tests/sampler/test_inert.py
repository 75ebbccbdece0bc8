"""Knobs that the trainer does not heed."""

import random
from collections.abc import Mapping

import pytest

from autotune.records import Scalar
from autotune.sampler.importance import (
    knobs_by_effect,
    printed_the_same,
    printed_values,
    same_batch,
    with_knobs_fixed,
)
from autotune.sampler.observations import Observation
from autotune.space.space import Space
from tests.runs import MakeTrial, knob, observation

BATCH = knob("batch", 8, 16, 32, 64, kind="batch_size")
SPACE = Space(knobs=(BATCH, knob("workers", 1, 2, 4), knob("dead", 1, 2, 3, 4, 5), knob("flag", False, True)))


def searched(trials: int, sd: float, effect: Mapping[str, float], seed: int = 0) -> dict[str, Observation]:
    """Levels of points drawn by chance, where each knob's steps away from today's add that much to the ln score."""
    rng = random.Random(seed)
    found = {}
    for _ in range(trials):
        changes: dict[str, Scalar] = {of.path: rng.choice(of.choices) for of in SPACE.knobs}
        gain = sum(step * SPACE.knob(path).choices.index(changes[path]) for path, step in effect.items())
        one = observation(SPACE, gain + rng.gauss(0.0, sd), **changes)
        found[one.name] = one
    return found


@pytest.mark.parametrize(("held", "ignored"), [((8, 8, 8), True), ((8, 16, 64), False), ((8, 8, 64), False)])
def test_steps_that_hold_the_same_samples_whatever_the_batch_size(
    held: tuple[float, ...], ignored: bool, make_trial: MakeTrial
) -> None:
    """The batch size does not reach the trainer; one trial in which it did is enough to say that it does."""
    trials = [
        make_trial({**SPACE.baseline, "batch": size}, samples_per_s=10.0 * samples)  # 20 steps in 2 s
        for size, samples in zip((8, 16, 64), held, strict=True)
    ]
    found = same_batch(trials, SPACE)
    assert found == ({"batch": "each step had 8 samples with 8 and with 64"} if ignored else {})


FORMS = ("config: {'batch': 8, 'lr': 0.1}", "Namespace(batch=8, lr=0.1)", "python train.py --batch 8 --lr 0.1")


@pytest.mark.parametrize("output", [*FORMS, "--batch: 8\n", "  batch   8", "Using batch = 8."])
def test_a_value_is_found_however_it_is_printed(output: str) -> None:
    """As a dictionary, by argparse, in YAML, in a table, as a flag, in a sentence."""
    assert printed_values(output, SPACE) == {"batch": frozenset({"8"})}


def printed(*trials: tuple[int, str]) -> dict[str, str]:
    """Return the finding for trials with these batches that printed this."""
    found = [({**SPACE.baseline, "batch": batch}, printed_values(said, SPACE)) for batch, said in trials]
    return printed_the_same(found, SPACE)


def test_a_trainer_that_prints_the_same_whatever_is_set() -> None:
    """One of the values that were set: other words may be about anything."""
    said = {"batch": "the trainer printed 8 every time, with 8, 32 and 64 set"}
    assert printed((8, "batch: 8"), (32, "batch: 8"), (64, "batch: 8")) == said
    assert printed((8, "batch: 4"), (8, "batch: 4"), (64, "batch: 4")) == {}
    assert printed(*((size, f"Using {size} in a batch\nEpoch 1/300") for size in (8, 32, 64))) == {}


def test_a_trainer_that_prints_what_is_set() -> None:
    """Once, or along with the default; or that does not print it, or was run too little to tell."""
    assert printed((8, "batch: 8"), (32, "batch: 32"), (64, "batch: 64")) == {}
    assert printed((8, "batch: 8"), (32, "batch: 8 -> batch: 32"), (64, "batch: 8 -> batch: 64")) == {}
    assert printed((8, ""), (32, ""), (64, "")) == {}
    assert printed((8, "batch: 8"), (32, "batch: 8")) == {}
    assert printed((8, "batch: 8"), (8, "batch: 8"), (8, "batch: 8")) == {}


def test_a_space_without_dead_knobs_leaves_them_as_they_are() -> None:
    """The others may be turned as before, and runs that differ in the dead ones alone are runs of one point."""
    left = with_knobs_fixed(SPACE, {"dead"})
    assert [len(of.choices) for of in left.knobs] == [4, 3, 1, 2]
    assert left.baseline == SPACE.baseline


def test_what_shows_an_effect_is_known() -> None:
    """A knob with an effect is never inert, whatever the trainer prints; nor one of which too little is known."""
    observations = searched(40, 0.01, {"batch": 0.2, "workers": 0.15})
    assert knobs_by_effect(observations, SPACE, 0.01) == ({"batch", "workers"}, {"dead", "flag"})
    assert knobs_by_effect(searched(5, 0.01, {}), SPACE, 0.01) == (set(), set())
