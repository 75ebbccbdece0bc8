"""Trainer whose data come in bursts, or stop for a while: what `scripts.bench stalls` searches. A script.

``python stalling_trainer.py CONFIG.yaml`` trains until it is ended, or for ``--seconds``; then it prints the speed in
samples per second, the first five seconds left out.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_BATCH = 8
_WARM_UP_S = 5.0


def main() -> None:
    """Train with the framework, and from the storage, that the config names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    wait_s = config["waits_s"][config["data"]["storage"]]
    train = {"torch": _train_torch, "tensorflow": _train_tensorflow}[config["framework"]]
    train(wait_s, _Count(options.seconds))


class _Count:
    """Count of the steps; ends the process, and prints the speed, when the time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin_s: float | None = None
        self._measured_s = 0.0
        self._steps = 0

    def __call__(self) -> None:
        now_s = time.monotonic()
        self._begin_s = self._begin_s or now_s
        if now_s - self._begin_s < _WARM_UP_S:
            self._measured_s = now_s
            return
        self._steps += 1
        if now_s - self._begin_s > self._seconds:
            print(f"{_BATCH * self._steps / (now_s - self._measured_s):.3f}", flush=True)
            os._exit(0)  # a generator of TensorFlow, or a worker, may be in the way


def _train_torch(wait_s: float, count: Callable[[], None]) -> None:
    """Train on a loader whose four workers wait for storage at the same time: batches come four at once."""
    import torch
    from torch.utils.data import DataLoader

    class Stored:
        def __len__(self) -> int:
            return 4000

        def __getitem__(self, index: int) -> Any:
            time.sleep(wait_s)
            return torch.full((64,), float(index % 7)), torch.tensor([float(index % 7)])

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.set_num_threads(1)
    while True:
        for batch, wanted in DataLoader(Stored(), batch_size=_BATCH, num_workers=4):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), wanted).backward()
            optimizer.step()
            count()


def _train_tensorflow(wait_s: float, count: Callable[[], None]) -> None:
    """Fit on data that are read a hundred batches at a time."""
    import keras
    import tensorflow as tf

    def batches() -> Iterator[Any]:
        while True:
            time.sleep(wait_s)
            for index in range(100):
                time.sleep(0.008)
                yield tf.fill((_BATCH, 64), float(index % 7)), tf.fill((_BATCH, 1), float(index % 7))

    spec = (tf.TensorSpec((_BATCH, 64)), tf.TensorSpec((_BATCH, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: count())
    model.fit(data, epochs=10**6, steps_per_epoch=1000, verbose=0, callbacks=[callback])


if __name__ == "__main__":
    main()
