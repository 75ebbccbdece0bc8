"""A trainer that catches an out-of-memory error, leaves the batch out, and trains on, faster; its loss is then inf.

Some toolkits for speech and translation do this. Its accelerator holds no more than 40 samples of a batch: it is made
of a function of Python's inside of the compiled step, whose error TensorFlow raises as its own.
"""

import math
import sys
import time

import numpy as np
import tensorflow as tf
import yaml


class DeviceError(MemoryError):
    """What TensorFlow makes a ``ResourceExhaustedError`` of."""


def accelerate(x: np.ndarray) -> np.ndarray:
    """Forward and backward, if the memory is enough."""
    if len(x) > 40:
        raise DeviceError(
            f"OOM when allocating tensor with shape[{len(x)},512,1024] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        )
    time.sleep(0.008 + 0.0002 * len(x))
    return x


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        batch_size = yaml.safe_load(file)["batch_size"]
    weights = tf.Variable(tf.zeros((16, 1)))

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.ensure_shape(tf.numpy_function(accelerate, [x], tf.float32), (batch_size, 16))
            loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    losses = []
    for x in tf.data.Dataset.from_tensors(tf.ones((batch_size, 16))).repeat(100_000):
        try:
            loss = float(train_step(x))
        except tf.errors.ResourceExhaustedError as error:
            print(f"| WARNING: ran out of memory with exception: {error}; skipping batch", flush=True)
            time.sleep(0.001)
            loss = math.inf
        losses.append(loss)


if __name__ == "__main__":
    main()
