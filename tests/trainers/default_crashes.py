"""A trainer whose default is broken: only with ``graph_mode: true`` does it train.

Its penalty on gradients was written for TensorFlow's graphs, and eager execution does not have that function.
"""

import sys
import time
from collections.abc import Iterator

import tensorflow as tf
import yaml


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        training = yaml.safe_load(file)["training"]
    weights = tf.Variable(tf.zeros((16, 1)))

    def batches() -> Iterator[tf.Tensor]:
        while True:
            time.sleep(0.008 + 0.0002 * training["batch_size"])
            yield tf.ones((training["batch_size"], 16))

    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = tf.nn.sigmoid(x @ weights)
            penalty = tf.reduce_mean(tf.square(tf.gradients(scores, x)[0]))
            loss = tf.reduce_mean(tf.square(scores - 1.0)) + 10.0 * penalty
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    if training["graph_mode"]:
        train_step = tf.function(train_step)
    for x in tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, 16))):
        train_step(x)


if __name__ == "__main__":
    main()
