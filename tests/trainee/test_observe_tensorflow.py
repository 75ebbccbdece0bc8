"""Steps of TensorFlow trainers that report nothing, beyond the contract of test_observers.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trial.guard import Guard
from autotune.trial.warm import ZygoteRunner
from tests.trainee.conftest import TRAINERS, observe_run, sums_up

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


def test_a_loop_that_cannot_be_seen_is_said(run) -> None:
    """A loop inside one tf.function has no steps, and the user is told what to add to it."""
    seen = run(sys.executable, TRAINERS, "loop-inside", "--steps", 5)
    assert seen.steps_of("loop-inside") == []
    (note,) = [event.text or "" for event in seen.of("loop-inside") if event.kind == "note"]
    assert "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])" in note


def test_forks_of_a_warm_interpreter_are_seen(tmp_path: Path) -> None:
    """The observer is installed on their side of the fork, before TensorFlow is handed out to the trainer."""
    words = (sys.executable, TRAINERS, "loop-compiled", "--steps", 5)
    with Guard() as guard:
        runner = ZygoteRunner(guard, SystemClock())
        trials = [observe_run(runner, tmp_path / str(number), *words) for number in range(2)]
        assert runner.warm_starts == 1, runner.remarks
    for seen in trials:
        sums_up(seen, "loop-compiled")


STEPS = """\
import sys

import tensorflow as tf

weights = tf.Variable(tf.random.normal([16, 16]))
layers = [tf.keras.layers.Dense(16) for _ in range(12)]
for layer in layers:
    layer.build((None, 16))


@tf.function(input_signature=[tf.TensorSpec([None, 16])])
def traced(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(x, weights) ** 2)
    weights.assign_sub(0.001 * tape.gradient(loss, weights))
    return loss


def recomputed(x):
    with tf.GradientTape() as tape:
        for layer in layers:
            x = tf.recompute_grad(layer)(x)
        loss = tf.reduce_mean(x**2)
    tape.gradient(loss, [one for layer in layers for one in layer.trainable_variables])


if sys.argv[1] == "traced":
    traced.get_concrete_function()
for x in tf.data.Dataset.from_tensor_slices(tf.random.normal([160, 16])).batch(8):
    {"traced": traced, "recomputed": recomputed}[sys.argv[1]](x)
"""


@pytest.mark.parametrize("step", ["traced", "recomputed"])
def test_a_step_that_is_traced_beforehand_or_computes_again_is_one(run, tmp_path: Path, step: str) -> None:
    """The first call of a compiled function need not trace it; a gradient may be taken within another one."""
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    steps = [event for event in run(sys.executable, script, step).events if event.kind == "step"]
    assert [event.samples for event in steps] == [8.0] * 20
