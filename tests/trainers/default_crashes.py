"""A trainer whose default is broken: only with ``graph_mode: true`` does it train."""

import sys
import time

import yaml

from autotune.trainee import step


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        training = yaml.safe_load(file)["training"]
    if not training["graph_mode"]:
        raise NotImplementedError("numpy() is only available when eager execution is enabled.")
    for _ in range(100_000):
        time.sleep(0.008 + 0.0002 * training["batch_size"])
        step(samples=training["batch_size"])


if __name__ == "__main__":
    main()
