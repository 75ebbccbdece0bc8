"""A trainer that trains, writes its log into the working directory, and then fails in validation, with status 1."""

import sys
import time

import yaml

from autotune.trainee import step


def validate(losses: list[float]) -> None:
    """Fails, on an empty split."""
    assert losses
    raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")


def main() -> None:
    """Trains an epoch, and validates."""
    with open(sys.argv[1], encoding="utf-8") as file:
        data = yaml.safe_load(file)["data"]
    with open("train.log", "a", encoding="utf-8") as log:
        log.write(f"training with {data}\n")
    losses: list[float] = []
    for number in range(500):
        time.sleep((0.006 + 0.0002 * data["batch_size"]) / min(data["num_workers"], 2))
        losses.append(1.0 / (1 + number))
        step(samples=data["batch_size"], loss=losses[-1])
    validate(losses)


if __name__ == "__main__":
    main()
