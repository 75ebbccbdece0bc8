"""Benchmark of the pipeline over two devices: how much of what its stages allow is reached.

Both stages wait (of the same length, even or spread by half of it to either side), on two logical CPU devices. Each is
timed alone first: a call of TensorFlow and Python's own waiting are in that, and in the bound, 1 / max(f, s). Then a
loop of one's own, and Keras' ``fit``, take their batches from both.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench.results import Commands, markdown_table

_BATCHES = 150
_WARM = 8


def add_devices(commands: Commands) -> None:
    """Add the command ``devices``."""
    parser = commands.add_parser("devices", help="the share of its bound that the pipeline over two devices reaches")
    parser.add_argument("--ms", type=lambda text: [float(one) for one in text.split(",")], default=[5, 15, 30, 100])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Time each stage alone, and both in the pipeline."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from autotune.tf.options import BufferOptions, DeviceOptions, RuntimeOptions
    from autotune.tf.runtime import configure, place
    from autotune.tf.two_stage import TwoStageFeed, two_stage_dataset

    devices = DeviceOptions(data_gpu=0, model_gpu=1, logical_cpu_devices=2)
    configure(RuntimeOptions(), devices)
    placement = place(devices)
    assert placement is not None, "two devices were configured"
    random_numbers = random.Random(0)
    wait_s, spread = 0.0, 0.0

    def waited(number: Any) -> Any:
        def wait(value: Any) -> Any:
            time.sleep(wait_s * (1.0 + spread * random_numbers.uniform(-1.0, 1.0)))
            return value

        return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])

    def features(_: Any, number: Any) -> dict[str, Any]:
        return {"number": waited(number), "sound": tf.fill([16, 80, 200], tf.cast(number, tf.float32))}

    step = tf.function(waited, input_signature=[tf.TensorSpec([], tf.int64)])
    compute = tf.function(lambda number: features(None, number), input_signature=[tf.TensorSpec([], tf.int64)])
    one, rows = tf.constant(np.array(1)), []
    for wait_ms in arguments.ms:
        for spread in (0.0, 0.5):
            wait_s = wait_ms / 1000.0
            alone_s = max(_mean_s(lambda: step(one).numpy()), _mean_s(lambda: compute(one)["number"].numpy()))
            batches = tf.data.Dataset.range(1 << 40).map(lambda number: {"number": number})
            with TwoStageFeed(batches, features, placement, BufferOptions(batches=4), work="number") as feed:

                def train(feed: Any = feed) -> None:
                    fetched = next(feed)
                    with tf.device(placement.model):
                        step(fetched.batch["number"])

                shares = [alone_s / _mean_s(train)]
            options = BufferOptions(batches=4)
            dataset = two_stage_dataset(batches, features, placement, options, work="number", elements=dict)
            with tf.device(placement.model):
                shares.append(alone_s / _mean_s_of_fit(tf, dataset, step))
            spread_text = f"+- {spread:.0%}" if spread else "even"
            rows.append(
                [f"{wait_ms:g} ms", spread_text, f"{1e3 * alone_s:.2f} ms", *(f"{share:.1%}" for share in shares)]
            )
            print(*rows[-1], flush=True)
    print(markdown_table(("each stage waits", "lengths", "a stage alone", "share of the bound", "by `fit`"), rows))


def _mean_s_of_fit(tf: Any, dataset: Any, step: Callable[[Any], Any]) -> float:
    class Waiting(tf.keras.Model):  # type: ignore[misc]  # its class is known only where TensorFlow is loaded
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"loss": tf.cast(step(data["number"]), tf.float32)}

    model, ends_s = Waiting(), list[float]()
    model.compile()
    follow = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: ends_s.append(time.monotonic()))
    model.fit(dataset, steps_per_epoch=_WARM + _BATCHES, shuffle=False, callbacks=[follow], verbose=0)
    return (ends_s[-1] - ends_s[_WARM - 1]) / _BATCHES


def _mean_s(call: Callable[[], object]) -> float:
    for _ in range(_WARM):
        call()
    begin_s = time.monotonic()
    for _ in range(_BATCHES):
        call()
    return (time.monotonic() - begin_s) / _BATCHES
