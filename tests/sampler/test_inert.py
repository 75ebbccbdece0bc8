"""Knobs that the trainer does not heed."""

import random
from collections.abc import Mapping

import pytest

from autotune.records import Scalar
from autotune.sampler.inert import (
    effects_shown,
    inert_knobs,
    is_large,
    printed_values,
    said_the_same,
    same_batch,
    without_turning,
)
from autotune.sampler.observations import Observation
from autotune.space.space import Space
from tests.runs import MakeTrial, knob, named, observation

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


def inert(observations: Mapping[str, Observation], sd: float) -> dict[str, str]:
    """The knobs that seem to make no difference."""
    return inert_knobs(effects_shown(observations, SPACE, sd), observations, SPACE)


def test_a_dead_knob_among_live_ones_is_found() -> None:
    """Its values were tried, far ones too, and make no difference that could be worth anything."""
    found = inert(searched(40, 0.01, {"batch": 0.2, "workers": 0.15, "flag": 0.1}), 0.01)
    assert list(found) == ["dead"]
    assert found["dead"].startswith("no effect seen in ")


def test_a_small_effect_is_an_effect() -> None:
    """5 % from end to end are worth having, and are not called nothing."""
    assert "dead" not in inert(searched(40, 0.01, {"batch": 0.2, "dead": 0.0125}), 0.01)


def test_noise_hides_effects_and_so_proves_nothing() -> None:
    """At 8 % between trials a few dozen of them cannot exclude an effect."""
    assert inert(searched(30, 0.08, {"batch": 0.2}), 0.08) == {}


def test_where_nothing_shows_an_effect_nothing_is_called_dead() -> None:
    """Then it may be the measurement that is blind, e.g. to a loop that waits for something else."""
    assert inert(searched(40, 0.005, {}), 0.005) == {}


def test_a_few_runs_prove_nothing() -> None:
    """Three points tell less than there are effects to tell."""
    few = named(observation(SPACE, 0.0), observation(SPACE, 0.5, batch=64), observation(SPACE, 0.5, batch=64, dead=5))
    assert inert(few, 0.01) == {}


def test_values_near_todays_prove_nothing() -> None:
    """One step along the ladder makes no difference; the far end was never tried."""
    near = {name: one for name, one in searched(80, 0.005, {"batch": 0.2}).items() if one.values["dead"] in (1, 2)}
    assert "dead" not in inert(near, 0.005)


def test_an_effect_that_depends_on_another_knob_is_none_the_less() -> None:
    """It helps only with large batches: what the main effects leave over widens all intervals."""
    observations = {}
    for name, one in searched(60, 0.005, {"batch": 0.2}).items():
        extra = 0.3 if one.values["flag"] and one.values["batch"] == 64 else 0.0
        observations[name] = observation(SPACE, one.mean + extra, **one.values)
    assert "flag" not in inert(observations, 0.005)


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


def test_one_batch_size_tells_nothing(make_trial: MakeTrial) -> None:
    """Neither does a failed run."""
    assert (
        same_batch([make_trial(SPACE.baseline, 80.0), make_trial({**SPACE.baseline, "batch": 64}, None)], SPACE) == {}
    )


@pytest.mark.parametrize(
    "output",
    [
        "config: {'batch': 8, 'lr': 0.1}",
        "Namespace(batch=8, lr=0.1)",
        "--batch: 8\n",
        "  batch   8",
        "python train.py --batch 8 --lr 0.1",
        "Using batch = 8.",
    ],
)
def test_a_value_is_found_however_it_is_printed(output: str) -> None:
    """As a dictionary, by argparse, in YAML, in a table, as a flag, in a sentence."""
    assert printed_values(output, SPACE) == {"batch": frozenset({"8"})}


@pytest.mark.parametrize("output", ["val_batch: 8", "batch_per_gpu: 8", "x.batch: 8", "batches", "", "8"])
def test_another_key_is_none(output: str) -> None:
    """One whose name only begins or ends like it."""
    assert printed_values(output, SPACE) == {}


def printed(*trials: tuple[int, str]) -> dict[str, str]:
    """Return the finding for trials with these batches that printed this."""
    return said_the_same(
        [({**SPACE.baseline, "batch": batch}, printed_values(said, SPACE)) for batch, said in trials], SPACE
    )


def test_a_trainer_that_prints_the_same_whatever_is_set() -> None:
    """Today's value, or any other one."""
    assert printed((8, "batch: 8"), (32, "batch: 8"), (64, "batch: 8")) == {
        "batch": "the trainer printed 8 each time, set to 8, 32 and 64"
    }
    assert list(printed((8, "batch: 4"), (8, "batch: 4"), (64, "batch: 4"))) == ["batch"]


def test_a_trainer_that_prints_what_is_set() -> None:
    """Once, or along with the default; or that does not print it, or was run too little to tell."""
    assert printed((8, "batch: 8"), (32, "batch: 32"), (64, "batch: 64")) == {}
    assert printed((8, "batch: 8"), (32, "batch: 8 -> batch: 32"), (64, "batch: 8 -> batch: 64")) == {}
    assert printed((8, ""), (32, ""), (64, "")) == {}
    assert printed((8, "batch: 8"), (32, "batch: 8")) == {}
    assert printed((8, "batch: 8"), (8, "batch: 8"), (8, "batch: 8")) == {}


def test_a_space_without_dead_knobs_leaves_them_as_they_are() -> None:
    """The others may be turned as before, and runs that differ in the dead ones alone are runs of one point."""
    left = without_turning(SPACE, {"dead"})
    assert [len(of.choices) for of in left.knobs] == [4, 3, 1, 2]
    assert left.baseline == SPACE.baseline


def test_what_shows_an_effect_is_known() -> None:
    """A knob with an effect is never inert, whatever the trainer prints."""
    observations = searched(40, 0.01, {"batch": 0.2, "workers": 0.15})
    assert {effect.path for effect in effects_shown(observations, SPACE, 0.01) if is_large(effect)} == {
        "batch",
        "workers",
    }
