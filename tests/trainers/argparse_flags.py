"""A trainer that takes flags and no file: ``python train.py --batch-size 8 --workers 1 --amp --output-dir out``."""

import argparse
import time
from pathlib import Path

from autotune.trainee import step


def main() -> None:
    """Trains until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--max-steps", type=int, default=100_000)
    arguments = parser.parse_args()
    output = Path(arguments.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    with (output / "metrics.csv").open("a", buffering=1) as metrics:
        for number in range(arguments.max_steps):
            time.sleep((0.008 + 0.0002 * arguments.batch_size) / min(arguments.workers, 2))
            step(samples=arguments.batch_size)
            metrics.write(f"{number}\n")


if __name__ == "__main__":
    main()
