"""A trainer that calls Keras's ``fit`` on random pictures, with a loader as slow as its config says."""

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import yaml


def main() -> None:
    """Trains for as long as the config says."""
    config = yaml.safe_load(Path(sys.argv[1]).read_text())
    keras.utils.set_random_seed(0)
    pictures = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("float32")

    def load(number: np.ndarray) -> np.ndarray:
        if number % config["batch_size"] == 0:
            is_slow = number // config["batch_size"] % config["slow_every"] == 0
            time.sleep(config["load_s"] * (5 if is_slow else 1))
        return pictures[int(number) % len(pictures)]

    def sample(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.numpy_function(load, [number], tf.float32)
        return tf.ensure_shape(picture, (32, 32, 3)), number % 10

    batches = tf.data.Dataset.range(1_000_000).map(sample).batch(config["batch_size"], drop_remainder=True)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=config["xla"], run_eagerly=config["eager"])
    model.fit(batches.prefetch(2), steps_per_epoch=50, epochs=config["epochs"], verbose=2)


if __name__ == "__main__":
    main()
