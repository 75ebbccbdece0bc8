"""A trainer that catches an out-of-memory error, leaves the batch out, and trains on, faster; its loss is then inf.

Some toolkits for speech and translation do this. It needs a GPU's memory for more than 40 samples of a batch.
"""

import math
import sys
import time

import yaml

from autotune.trainee import step


class OutOfMemoryError(RuntimeError):
    """Called as PyTorch's."""


def train_step(batch_size: int) -> float:
    """One step, if the GPU holds it."""
    if batch_size > 40:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 10 GiB.")
    time.sleep(0.008 + 0.0002 * batch_size)
    return 1.0


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        batch_size = yaml.safe_load(file)["batch_size"]
    for _ in range(100_000):
        try:
            loss = train_step(batch_size)
        except OutOfMemoryError as error:
            print(f"| WARNING: ran out of memory with exception: {error}; skipping batch", flush=True)
            time.sleep(0.002)
            loss = math.inf
        step(samples=batch_size, loss=loss)


if __name__ == "__main__":
    main()
