"""A trainer that opens its config twice: for its data, and later, when it has imported TensorFlow, for its model."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import yaml


def section(name: str) -> dict[str, Any]:
    """A section of the file that was named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        return yaml.safe_load(file)[name]


def main() -> None:
    """Trains until it is stopped."""
    data = section("data")

    import tensorflow as tf

    def batches() -> Iterator[tf.Tensor]:
        while True:
            time.sleep(0.004)
            yield tf.ones((data["batch_size"], 16))

    dataset = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, 16)))
    model = section("model")
    weights = tf.Variable(tf.zeros((16, 1)))

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    for x in dataset:
        train_step(x)
        time.sleep((0.006 + 0.0002 * data["batch_size"]) * (1.0 if model["mixed_precision"] else 1.6))


if __name__ == "__main__":
    main()
