"""Keys that make up one batch are searched together: what is computed at once, how often that is accumulated."""

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.records import Verdict
from scripts.bench.simulated_runner import Training
from tests.search.simulated import Search

CONFIG = """\
train_batch_size: 32
train_micro_batch_size_per_gpu: 8
gradient_accumulation_steps: 4
autotune:
    command: "{python} train.py {config}"
"""
PART, STEPS, WHOLE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


def train(config: Mapping[str, Any]) -> Training:
    """12 ms for each part, 0.3 ms for each sample, 5 ms for each update; the three keys have to agree."""
    part, steps = config[PART], config[STEPS]
    assert config[WHOLE] == part * steps, "the trainer refuses what does not agree"
    return Training(samples=part, step_s=0.012 + 0.0003 * part + 0.005 / steps, start_s=1.0, noise=0.01)


def test_a_larger_part_of_the_same_batch_is_the_same_training(search: Search) -> None:
    """Without a hint, and no trial is one that the trainer refuses; a larger batch is what `--all` would write."""
    answer = search(train, config=CONFIG, budget_s=120.0).answer
    assert answer.verdict is Verdict.BETTER
    assert answer.best is not None
    assert answer.same_training is not None
    assert (answer.best.values[PART], answer.same_training[0].values[PART]) == (128, 32)
    assert answer.same_training[1] == pytest.approx(2.4, rel=0.1)
    (change,) = answer.changes
    assert change.effective_batch.endswith("changes from 32 to 128")
    assert {moved.path: moved.new for moved in change.along} == {STEPS: 1, WHOLE: 128}
    assert not any("each step had" in caution for caution in answer.cautions)  # the whole moves along


def test_of_the_same_training_alone_the_keys_stay_one_batch(search: Search) -> None:
    """The answer changes two keys, and no effective batch."""
    answer = search(train, config=CONFIG, budget_s=120.0, same_training=True).answer
    assert answer.verdict is Verdict.BETTER
    (change,) = answer.changes
    assert (change.new, change.label, change.effective_batch) == (32, "same training", "")
    assert {moved.path: moved.new for moved in change.along} == {STEPS: 1}
