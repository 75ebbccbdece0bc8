"""A trainer whose native loader prints SUCCESS, and then falls back to the slow path, slower than ever."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf
import yaml


def native(path: tf.Tensor) -> tf.Tensor:
    """Reads a batch without Python; so its author believes."""
    with open(path, "rb") as file:
        return tf.io.decode_raw(file.read(), tf.float32)


def make_dataset(batch_size: int, use_tf_native_loading: bool) -> tf.data.Dataset:
    """Batches without end."""
    clips = tf.data.Dataset.from_tensors("corpus/clips.bin").repeat()
    slower = 1.0
    if use_tf_native_loading:
        print("✅ SUCCESS: TF-native loading enabled!", flush=True)
        try:
            return clips.map(native).batch(batch_size)
        except TypeError as error:
            print(f"WARNING: {error}; falling back to numpy_function loading", file=sys.stderr, flush=True)
            slower = 1.5

    def load(_path: bytes) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(slower * (0.008 + 0.0002 * batch_size))
        return np.ones((batch_size, 16), np.float32), np.ones((batch_size, 1), np.float32)

    def shaped(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = tf.numpy_function(load, [path], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (batch_size, 16)), tf.ensure_shape(y, (batch_size, 1))

    return clips.map(shaped)


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(make_dataset(**config), steps_per_epoch=100_000, verbose=0)


if __name__ == "__main__":
    main()
