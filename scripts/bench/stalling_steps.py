"""Steps of training that stops and goes, of known mean time: what `scripts.bench cycles` searches. Also a trainer.

``python stalling_steps.py CONFIG.yaml`` trains by waiting, in real time, until it is ended, or for ``--seconds``; then
it prints the speed in samples per second. Standard library, and `autotune.trainee` in a trial.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

STEP_S = 0.008
SAMPLES = 8


class Stalling(NamedTuple):
    """Kind of training with stalls.

    Attributes:
        usual_s: Length of a stall of today's config.
        mean_s: Returns the mean time of a step, given the time of a quick one and the length of a stall.
        steps: Yields the times of the steps, given the same and a source of chance.
    """

    usual_s: float
    mean_s: Callable[[float, float], float]
    steps: Callable[[random.Random, float, float], Iterator[float]]


def times_of(kind: str, ratio: float) -> tuple[float, float]:
    """Return the time of a quick step, and the length of a stall, with which it is so many times as fast as today's.

    Stalls become shorter, down to a tenth; where that is not enough, quick steps do, too.
    """
    stalling = KINDS[kind]
    wanted_s = stalling.mean_s(STEP_S, stalling.usual_s) / ratio
    if ratio == 1.0:
        return STEP_S, stalling.usual_s
    step_s = STEP_S
    while stalling.mean_s(step_s, 0.1 * stalling.usual_s) > wanted_s:
        step_s *= 0.9
    low_s, high_s = 0.0, stalling.usual_s
    for _ in range(60):
        middle_s = (low_s + high_s) / 2.0
        low_s, high_s = (middle_s, high_s) if stalling.mean_s(step_s, middle_s) < wanted_s else (low_s, middle_s)
    return step_s, high_s


def _every(steps: int, stall_s: float, *, of_four: int = 1) -> Stalling:
    """Return training with stalls every so many steps, which take that time, in so many pieces."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        while True:
            for index in range(steps):
                yield step_s + (stall_s / of_four if index < of_four else 0.0)

    return Stalling(stall_s, lambda step_s, stall_s: step_s + stall_s / steps, made)


def _after(period_s: float, stall_s: float) -> Stalling:
    """Return training that is held up every so many seconds, whatever it does, such as by a backup of the machine."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        left_s = period_s
        while True:
            stalls = left_s <= step_s
            yield step_s + (stall_s if stalls else 0.0)
            left_s += (period_s - stall_s if stalls else 0.0) - step_s

    return Stalling(stall_s, lambda step_s, stall_s: step_s * period_s / (period_s - stall_s), made)


def _at_random(share: float, stall_s: float, *, vary: bool = False) -> Stalling:
    """Return training of whose steps a share stalls; all for the same time, or for exponential ones."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        while True:
            length_s = rng.expovariate(1.0 / stall_s) if vary else stall_s
            yield length_s if rng.random() < share else step_s

    return Stalling(stall_s, lambda step_s, stall_s: (1.0 - share) * step_s + share * stall_s, made)


def _nested(inner: int, shorter: float, outer: int, stall_s: float) -> Stalling:
    """Return training with a shorter stall every few steps, and a long one every so many of these."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        while True:
            for burst in range(outer):
                for index in range(inner):
                    yield step_s + (shorter * stall_s if index == 0 else 0.0) + (stall_s if burst + index == 0 else 0.0)

    def mean_s(step_s: float, stall_s: float) -> float:
        return step_s + shorter * stall_s / inner + stall_s / (inner * outer)

    return Stalling(stall_s, mean_s, made)


def _wandering(every: int, stall_s: float, *, by: float) -> Stalling:
    """Return training whose stalls come now earlier, now later, by that share of their mean distance."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        while True:
            for index in range(max(1, round(every * rng.uniform(1.0 - by, 1.0 + by)))):
                yield step_s + (stall_s if index == 0 else 0.0)

    return Stalling(stall_s, lambda step_s, stall_s: step_s + stall_s / every, made)


def _swelling(every: int, stall_s: float, *, over: int) -> Stalling:
    """Return training whose stalls become longer and shorter by a half, within so many of them."""

    def made(rng: random.Random, step_s: float, stall_s: float) -> Iterator[float]:
        place = rng.randrange(over)
        while True:
            place += 1
            longer = 1.0 + 0.5 * math.sin(2.0 * math.pi * place / over)
            for index in range(every):
                yield step_s + (longer * stall_s if index == 0 else 0.0)

    return Stalling(stall_s, lambda step_s, stall_s: step_s + stall_s / every, made)


KINDS: Mapping[str, Stalling] = {
    "0.35 s every 40 steps": _every(40, 0.35),
    "1 s every 100": _every(100, 1.0),
    "2.2 s every 300": _every(300, 2.2),
    "2 % at random, 0.4 s": _at_random(0.02, 0.4),
    "bursts of four in epochs": _nested(4, 0.03, 50, 1.0),
    "0.1 s every 10": _every(10, 0.1),
    "0.2 s every 25": _every(25, 0.2),
    "0.5 s every 60, in three steps": _every(60, 0.5, of_four=3),
    "1.5 s every 200": _every(200, 1.5),
    "3 s every 500": _every(500, 3.0),
    "6 s every 800": _every(800, 6.0),
    "8 s every 1200, in four steps": _every(1200, 8.0, of_four=4),
    "0.1 s each 0.5 s": _after(0.5, 0.1),
    "0.6 s each 2 s": _after(2.0, 0.6),
    "1.5 s each 5 s": _after(5.0, 1.5),
    "4 s each 15 s": _after(15.0, 4.0),
    "10 % at random, 0.05 s": _at_random(0.1, 0.05),
    "0.5 % at random, 0.8 s": _at_random(0.005, 0.8),
    "0.2 % at random, 2 s": _at_random(0.002, 2.0),
    "2 % at random, about 0.3 s": _at_random(0.02, 0.3, vary=True),
    "0.1 s every 50, 0.5 s every 500": _nested(50, 0.2, 10, 0.5),
    "0.06 s every 16, 1.5 s every 640": _nested(16, 0.04, 40, 1.5),
    "0.6 s about every 100": _wandering(100, 0.6, by=0.3),
    "0.3 s about every 50, at any time": _wandering(50, 0.3, by=0.9),
    "1 s every 120, longer and shorter": _swelling(120, 1.0, over=12),
}


def main() -> None:
    """Train by waiting."""
    import yaml

    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    step_s, stall_s = times_of(config["kind"], config["ratios"][config["storage"]])
    try:
        from autotune.trainee import step
    except ImportError:

        def step(**_: float) -> None:  # type: ignore[misc]
            """Plain training reports to nobody."""

    begin_s = due_s = time.monotonic()
    for number, took_s in enumerate(KINDS[config["kind"]].steps(random.Random(), step_s, stall_s), 1):
        due_s += took_s  # no drift by what waiting takes too long: the mean is exact
        time.sleep(max(0.0, due_s - time.monotonic()))
        step(samples=SAMPLES)
        if due_s - begin_s >= options.seconds:
            print(f"{SAMPLES * number / (due_s - begin_s):.3f}")
            return


if __name__ == "__main__":
    main()
