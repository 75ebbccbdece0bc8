"""A trainer that reads a key and then uses another value: ``prefetch`` of the config is never heard of again."""

import sys
import time

import yaml

from autotune.trainee import step

PREFETCH = 2  # the key in the config was forgotten


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        data = yaml.safe_load(file)["data"]
    print(f"batch_size: {data['batch_size']}, prefetch: {PREFETCH}", flush=True)
    for _ in range(100_000):
        time.sleep(0.008 + 0.0002 * data["batch_size"])
        step(samples=data["batch_size"])


if __name__ == "__main__":
    main()
