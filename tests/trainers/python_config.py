"""A trainer whose config is Python, as nanoGPT's: ``python train.py config.py --batch_size=16``.

Globals are the config; a file of assignments is executed over them, then each ``--key=value`` in its type. It makes
its batches by itself, ahead of the step that is compiled.
"""

import sys
import time
from ast import literal_eval
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

batch_size = 4
num_workers = 1
learning_rate = 1e-3
out_dir = "out"

known = [name for name, value in globals().items() if not name.startswith("_") and isinstance(value, int | float | str)]
for argument in sys.argv[1:]:
    if not argument.startswith("--"):
        exec(Path(argument).read_text())
        continue
    key, _, text = argument[2:].partition("=")
    if key not in known:
        raise ValueError(f"Unknown config key: {key}")
    value = text if isinstance(globals()[key], str) else literal_eval(text)
    assert type(value) is type(globals()[key])
    print(f"Overriding: {key} = {value}")
    globals()[key] = value

weights = tf.Variable(tf.zeros((16, 1)))


def get_batch() -> tuple[np.ndarray, np.ndarray]:
    """The next batch."""
    time.sleep(0.008 + 0.0002 * batch_size)
    return np.ones((batch_size, 16), np.float32), np.ones((batch_size, 1), np.float32)


@tf.function
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """One step of gradient descent."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    weights.assign_sub(learning_rate * tape.gradient(loss, weights))
    return loss


Path(out_dir).mkdir(parents=True, exist_ok=True)
loaders = ThreadPoolExecutor(num_workers)
ahead = deque(loaders.submit(get_batch) for _ in range(num_workers))
for iter_num in range(100_000):
    ahead.append(loaders.submit(get_batch))
    X, Y = ahead.popleft().result()
    loss = train_step(X, Y)
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {float(loss):.4f}")
        np.save(Path(out_dir, "ckpt.npy"), weights.numpy())
