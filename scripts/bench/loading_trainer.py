"""Trainer whose loader or step is the limit, by its config: what `scripts.bench loaders` searches. A script.

``python loading_trainer.py CONFIG.yaml`` trains until it is ended, or for ``--seconds``; then it prints the speed in
samples per second, the first two seconds left out.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_BATCH = 16
_WIDTH = 256
_WARM_UP_S = 2.0


def main() -> None:
    """Train with the framework that the config names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    train = {"torch": _train_torch, "tensorflow": _train_tensorflow}[config["framework"]]
    train(config["data"], _SAMPLES[config["limit"]], 2048 if config["limit"] == "step" else 64, _Count(options.seconds))


class _Count:
    """Count of the steps; ends the process, and prints the speed, when the time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin_s = self._measured_s = time.monotonic()
        self._steps = -1

    def __call__(self) -> None:
        now_s = time.monotonic()
        if self._steps < 0:
            self._begin_s, self._steps = now_s, 0
        if now_s - self._begin_s < _WARM_UP_S:
            self._measured_s = now_s
            return
        self._steps += 1
        if now_s - self._begin_s > self._seconds:
            print(f"{_BATCH * self._steps / (now_s - self._measured_s):.3f}", flush=True)
            os._exit(0)  # a generator of TensorFlow, or a worker, may be in the way


def _stored(index: int) -> Any:
    """Return a sample that a storage far away takes its time for."""
    time.sleep(0.006)
    return np.full(_WIDTH, index % 7, np.float32)


def _decoded(index: int) -> Any:
    """Return a sample that takes a core some milliseconds."""
    values = np.full((_WIDTH, _WIDTH), index % 7 + 1, np.float32)
    return (values @ values @ values)[0] / 1e6


def _copied(index: int) -> Any:
    """Return a sample that is read from one end of much memory to the other."""
    return np.full((1 << 20,), index % 7, np.float32)[:: (1 << 20) // _WIDTH].copy()


def _ready(index: int) -> Any:
    return np.full(_WIDTH, index % 7, np.float32)


_SAMPLES: dict[str, Callable[[int], Any]] = {"latency": _stored, "cpu": _decoded, "memory": _copied, "step": _ready}


class _Samples:
    def __init__(self, sample: Callable[[int], Any]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        return self._sample(index)


def _train_torch(data: dict[str, Any], sample: Callable[[int], Any], width: int, count: Callable[[], None]) -> None:
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Sequential(torch.nn.Linear(_WIDTH, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    workers = data["num_workers"]
    ahead = data["prefetch_factor"] if workers else None
    for batch in DataLoader(_Samples(sample), batch_size=_BATCH, num_workers=workers, prefetch_factor=ahead):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        count()


def _train_tensorflow(
    data: dict[str, Any], sample: Callable[[int], Any], width: int, count: Callable[[], None]
) -> None:
    import keras
    import tensorflow as tf

    def load(index: Any) -> Any:
        values = tf.numpy_function(sample, [index], tf.float32)
        return tf.ensure_shape(values, (_WIDTH,)), tf.zeros(1)

    options = tf.data.Options()
    options.threading.private_threadpool_size = data["num_private_threads"]
    samples = tf.data.Dataset.range(1 << 40).map(load, num_parallel_calls=data["num_workers"])
    samples = samples.batch(_BATCH).prefetch(data["prefetch"]).with_options(options)
    model = keras.Sequential([keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-5), "mse")
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: count())
    model.fit(samples, epochs=10**6, steps_per_epoch=10**6, verbose=0, callbacks=[callback])


if __name__ == "__main__":
    main()
