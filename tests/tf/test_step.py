"""The training step: eager, traced or compiled, in each precision."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf.options import Precision, StepOptions
from autotune.tf.step import Adam, TrainStep

SIGNATURE = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([None], tf.float32)}


class Line:
    """A linear fit that notes how often it was traced and what it computed in."""

    def __init__(self, options: StepOptions, learning_rate: float = 0.05) -> None:
        self.weights = tf.Variable(tf.zeros([4]))
        self.calls = 0
        self.dtype = tf.as_dtype(options.precision.compute_dtype)
        self.optimizer = Adam([self.weights], learning_rate=learning_rate)
        self.step = TrainStep(self.loss, [self.weights], self.optimizer, options, SIGNATURE)

    def loss(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Mean squared error."""
        self.calls += 1
        product = tf.linalg.matvec(tf.cast(batch["x"], self.dtype), tf.cast(self.weights, self.dtype))
        assert product.dtype == self.dtype
        return tf.reduce_mean((tf.cast(product, tf.float32) - batch["y"]) ** 2)


def batch(rows: int, scale: float = 1.0) -> dict[str, tf.Tensor]:
    """Points on a known plane."""
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    return {"x": tf.constant(x * scale), "y": tf.constant(x @ np.float32([1, -2, 3, 0.5]) * scale)}


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("mode", [{"graph": False}, {}, {"xla": True}], ids=["eager", "graph", "xla"])
def test_it_learns_in_every_mode_and_precision(mode: dict[str, Any], precision: Precision) -> None:
    """The loss falls to a fraction, and the variables stay in float32."""
    line = Line(StepOptions(precision=precision, **mode))
    losses = [float(line.step(batch(16))) for _ in range(100)]
    assert losses[-1] < losses[0] / 10
    assert line.weights.dtype == tf.float32


def test_modes_agree() -> None:
    """Eager, traced and compiled steps make the same updates."""
    lines = [Line(StepOptions(**mode)) for mode in ({"graph": False}, {}, {"xla": True})]
    for _ in range(5):
        losses = [float(line.step(batch(8))) for line in lines]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_graph_mode_traces_once_for_all_lengths() -> None:
    """A batch of another length is no new trace; eager mode runs the Python each time."""
    traced, eager = Line(StepOptions()), Line(StepOptions(graph=False))
    for rows in (3, 5, 8):
        traced.step(batch(rows))
        eager.step(batch(rows))
    assert (traced.calls, eager.calls) == (1, 3)


def test_the_update_is_that_of_keras() -> None:
    """Five updates give the same weights as Keras's Adam."""
    ours = Line(StepOptions())
    theirs = Line(StepOptions(graph=False))
    keras_adam = tf.keras.optimizers.Adam(0.05)
    keras_adam.build([theirs.weights])
    keras_step = TrainStep(theirs.loss, [theirs.weights], keras_adam, StepOptions(), SIGNATURE)
    for _ in range(5):
        ours.step(batch(8))
        keras_step(batch(8))
    np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-4)


@pytest.mark.parametrize("xla", [False, True])
def test_gradients_out_of_range_are_skipped_and_the_scale_halved(xla: bool) -> None:
    """In float16 an update that is not finite changes nothing but the scale, and training goes on."""
    line = Line(StepOptions(precision=Precision.MIXED_FLOAT16, xla=xla))
    line.step(batch(8))
    before, scale = line.weights.numpy(), float(line.step.loss_scale.scale)
    line.step(batch(8, scale=1e4))
    np.testing.assert_array_equal(line.weights, before)
    assert float(line.step.loss_scale.scale) == scale / 2
    line.step(batch(8))
    assert (line.weights.numpy() != before).any()


def test_a_variable_that_the_loss_does_not_see_is_named() -> None:
    """Instead of an error from the depths of the optimizer."""
    line = Line(StepOptions())
    stray = tf.Variable(tf.zeros([2]), name="stray")
    step = TrainStep(line.loss, [line.weights, stray], line.optimizer, StepOptions(), SIGNATURE)
    with pytest.raises(ValueError, match="does not depend on stray"):
        step(batch(2))
