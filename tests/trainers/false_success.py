"""A trainer whose native loader prints SUCCESS, and then falls back to the slow path, slower than ever."""

import sys
import time

import yaml

from autotune.trainee import step


def main() -> None:
    """Trains until it is stopped."""
    with open(sys.argv[1], encoding="utf-8") as file:
        data = yaml.safe_load(file)["data"]
    slower = 1.0
    if data["use_tf_native_loading"]:
        print("✅ SUCCESS: TF-native loading enabled!", flush=True)
        print("WARNING: falling back to numpy_function loading", file=sys.stderr, flush=True)
        slower = 1.5
    for _ in range(100_000):
        time.sleep(slower * (0.008 + 0.0002 * data["batch_size"]))
        step(samples=data["batch_size"])


if __name__ == "__main__":
    main()
