"""A trainer that reads a key and then uses another value: ``prefetch`` of the config is never heard of again."""

import sys
import time
from collections.abc import Iterator

import tensorflow as tf
import yaml

PREFETCH = 2  # the key in the config was forgotten


def main() -> None:
    """Trains until it is stopped, and fetches inside of the compiled step."""
    with open(sys.argv[1], encoding="utf-8") as file:
        data = yaml.safe_load(file)["data"]
    print(f"batch_size: {data['batch_size']}, prefetch: {PREFETCH}", flush=True)
    weights = tf.Variable(tf.zeros((16, 1)))

    def batches() -> Iterator[tf.Tensor]:
        while True:
            time.sleep(0.008 + 0.0002 * data["batch_size"])
            yield tf.ones((data["batch_size"], 16))

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        x = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    dataset = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, 16)))
    iterator = iter(dataset.prefetch(PREFETCH))
    while True:
        train_step(iterator)


if __name__ == "__main__":
    main()
