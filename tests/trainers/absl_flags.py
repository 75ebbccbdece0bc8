"""A trainer with absl's flags, as many of TensorFlow's models have them: ``python train.py --batch_size=8 --nocache``.

Epochs over a small dataset; only the first of them has to load it, unless ``--nocache``.
"""

import time

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 8, "Samples in a batch.", lower_bound=1)
flags.DEFINE_bool("cache", True, "Whether the data are kept in memory.")


def load(number: np.ndarray) -> np.ndarray:
    """Takes a while."""
    time.sleep(0.002)
    return np.full(16, number / 128, np.float32)


def make_dataset() -> tf.data.Dataset:
    """The training split."""
    dataset = tf.data.Dataset.range(128).map(lambda number: tf.numpy_function(load, [number], tf.float32))
    if FLAGS.cache:
        dataset = dataset.cache()
    return dataset.batch(FLAGS.batch_size, drop_remainder=True)


def main(_argv: list[str]) -> None:
    """Trains until it is stopped."""
    dataset = make_dataset()
    weights = tf.Variable(tf.zeros((16, 1)))

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
        weights.assign_sub(1e-6 * tape.gradient(loss, weights))
        return loss

    for epoch in range(10_000):
        for x in dataset:
            loss = train_step(x)
            time.sleep(0.005)  # the accelerator
        logging.log_every_n_seconds(logging.INFO, "epoch %d: loss %.3f", 1, epoch, loss)


if __name__ == "__main__":
    app.run(main)
