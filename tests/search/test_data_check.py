"""Searches in which a gain alters the data that are trained on: it is found, told, and never written unasked."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.records import CONFIRMED, DataEffect, SearchResult
from autotune.space.knob import Label
from scripts.bench.simulated_runner import Batches, Training
from tests.search.simulated import CONFIG, Search, Trainer, plain

SAMPLES = 240
INPUTS = np.random.default_rng(7).normal(size=(SAMPLES, 12)).astype(np.float32)


def batches(order: Iterable[int], size: int, rng: np.random.Generator, noise: float = 0.0, shift: int = 0) -> Batches:
    """Yield the batches of samples in this order."""
    order = list(order)
    for begin in range(0, len(order), size):
        chosen = np.array(order[begin : begin + size])
        drawn = noise * rng.normal(size=(len(chosen), 12))
        yield (INPUTS[chosen] + drawn).astype(np.float32), (chosen + shift) % SAMPLES % 10


def trainer(change: str, noise: float) -> Trainer:
    """Return a trainer with honest gains, and one of `num_workers: 2` that does this to the data."""

    def train(config: Mapping[str, Any]) -> Training:
        data = config["data"]
        is_changed, size = data["num_workers"] == 2 and change != "nothing", data["batch_size"]

        def passes(rng: np.random.Generator) -> Iterable[Batches]:
            order = rng.permutation(SAMPLES).tolist()
            if is_changed and change == "a repeated stream":
                order = [one for one in order[: SAMPLES // 2] for _ in range(2)]
            if is_changed and change == "half of each pass":
                order = order[: SAMPLES // 2]
            frozen = rng.integers(1 << 31)
            for _ in range(2):
                draws = np.random.default_rng(frozen) if is_changed and change == "frozen" else rng
                shift = 3 if is_changed and change == "moved labels" else 0
                yield batches(order, 4 if is_changed and change == "batch" else size, draws, noise, shift)
                order = rng.permutation(order).tolist() if change != "frozen" else order

        epoch = SAMPLES // (2 if is_changed and change == "half of each pass" else 1) // size
        training = replace(plain(config), passes=passes, epoch=epoch)
        if change == "garbage that is not seen":
            training = replace(training, passes=None, loss=40.0 if is_changed else lambda made: 4.0 * 0.99**made)
        samples = 2 * size if is_changed and change == "batch" else size
        return replace(training, samples=samples, step_s=training.step_s / (1.8 if is_changed else 1.0))

    return train


CHANGES = {
    "a repeated stream": 0.0,
    "half of each pass": 0.0,
    "frozen": 0.3,
    "moved labels": 0.0,
    "batch": 0.0,
    "garbage that is not seen": 0.0,
}


def is_written_unasked(result: SearchResult, path: str, value: Any) -> bool:
    """Return whether plain `apply` would write a value."""
    if result.verdict not in CONFIRMED:
        return False
    if result.applies_same_training:
        return result.same_training is not None and result.same_training[0].values[path] == value
    return not result.needs_consent and any(change.path == path and change.new == value for change in result.changes)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(2))
def test_a_gain_that_alters_the_data_is_never_written_unasked(search: Search, change: str, seed: int) -> None:
    """Whatever the key is called: it is the fastest, and what plain `apply` writes is without it."""
    done = search(trainer(change, CHANGES[change]), budget_s=240.0, seed=seed)
    path = "data.num_workers"
    tried = [trial for trial in done.trials if trial.values[path] == 2 and trial.data]
    assert tried
    kind = DataEffect.BATCH if change == "batch" else DataEffect.DIFFERENT
    effects = {trial.data.effect for trial in tried if trial.data}
    assert kind in effects <= {kind, DataEffect.BATCH}  # of other batches, passes are not compared
    assert not is_written_unasked(done.answer, path, 2)
    label = Label.BATCH if change == "batch" else Label.DATA
    assert all(one.label == label for one in done.answer.changes if one.path == path)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_honest_gains_are_verified(search: Search, noise: float) -> None:
    """Other workers fetch the same samples in another order: the label stays, and it is said why."""
    config = CONFIG.replace("[8, 32]", "[8]").replace("[none, memory]", "[none]")
    done = search(trainer("nothing", noise), budget_s=120.0, config=config)
    assert done.answer.data is not None
    assert done.answer.data.effect is DataEffect.SAME
    assert {one.label for one in done.answer.changes} == {Label.SAME_TRAINING}
