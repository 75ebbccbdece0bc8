"""Trainer that goes well or wrong in the way that its config names: ``python moody_trainer.py <config>``."""

import math
import sys
import time
from collections.abc import Callable

import yaml

from autotune.trainee import step

STEP_S = 0.01


def train(steps: int, step_s: float = STEP_S, loss: Callable[[int], float] = lambda _n: 1.0) -> None:
    """Make so many steps."""
    for n in range(steps):
        time.sleep(step_s)
        step(samples=8, loss=loss(n))


def late() -> None:
    """Never come to the first step."""
    time.sleep(1e6)


def crashes() -> None:
    """Fail after enough steps to be sure that it trained."""
    train(3)
    raise ValueError("there is no such layer")


MOODS: dict[str, Callable[[], None]] = {
    "well": lambda: train(10**6),
    "slow": lambda: train(10**6, step_s=50 * STEP_S),
    "no number": lambda: train(10**6, loss=lambda n: 1.0 if n < 10 else math.nan),
    "far off": lambda: train(10**6, loss=lambda n: 1.0 + 1.2**n),
    "short": lambda: train(3),
    "late": late,
    "crashes": crashes,
}

if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        MOODS[yaml.safe_load(file)["mood"]]()
