"""A trainer that takes flags and no file: ``python train.py --batch-size 8 --workers 1 --output-dir out``.

A loop of its own, with a compiled step, over a dataset whose loading is mapped with that many workers.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.zeros((16, 1)))


@tf.function
def train_step(x: tf.Tensor) -> tf.Tensor:
    """One step of gradient descent."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
    weights.assign_sub(0.01 * tape.gradient(loss, weights))
    return loss


def main() -> None:
    """Trains until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--max-steps", type=int, default=100_000)
    arguments = parser.parse_args()

    def load(_number: int) -> np.ndarray:
        time.sleep(0.008 + 0.0002 * arguments.batch_size)
        return np.ones((arguments.batch_size, 16), np.float32)

    dataset = tf.data.Dataset.range(arguments.max_steps).map(
        lambda number: tf.numpy_function(load, [number], tf.float32), num_parallel_calls=arguments.workers
    )
    output = Path(arguments.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    with (output / "metrics.csv").open("a", buffering=1) as metrics:
        for number, x in enumerate(dataset):
            metrics.write(f"{number},{float(train_step(x))}\n")


if __name__ == "__main__":
    main()
