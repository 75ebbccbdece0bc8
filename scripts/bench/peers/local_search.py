"""Iterated local search over configs, as in ParamILS (Hutter, Hoos, Leyton-Brown & Stuetzle 2009), one trial a point.

A trial without a number is worse than any other. No point is measured twice.
"""

import random
from collections.abc import Iterator

from autotune.records import Values
from autotune.space.knob import same_scalar
from autotune.space.space import Space
from scripts.bench.peers.methods import Proposals

_RANDOM_POINTS = 10  # that the first home is chosen from, with the baseline
_CHANGED_KNOBS = 3  # by a perturbation
_RESTART_CHANCE = 0.01
_MOST_VAIN_ROUNDS = 1_000  # without a new point: all that can be reached is measured


def iterated_local_search(space: Space, seed: int) -> Proposals:
    """Climb by the first better change of one knob; from each local optimum change three at random and climb again."""
    rng = random.Random(seed)
    home = top = space.baseline
    speeds: dict[str, float] = {}

    def measure(values: Values) -> Proposals:
        name = space.name(values)
        if name not in speeds:
            speeds[name] = (yield values) or 0.0

    def speed(values: Values) -> float:
        return speeds[space.name(values)]

    def climb(start: Values) -> Proposals:
        nonlocal top
        top = start
        improved = True
        while improved:
            improved = False
            for neighbour in _neighbours(space, top, rng):
                yield from measure(neighbour)
                if speed(neighbour) > speed(top):
                    top, improved = neighbour, True
                    break

    yield from measure(home)
    for _ in range(_RANDOM_POINTS):
        other = _anywhere(space, rng)
        yield from measure(other)
        home = max(home, other, key=speed)
    yield from climb(home)
    home, vain = top, 0
    while vain < _MOST_VAIN_ROUNDS:
        known = len(speeds)
        start = _anywhere(space, rng) if rng.random() < _RESTART_CHANCE else _perturbed(space, home, rng)
        yield from measure(start)
        yield from climb(start)
        home = top if speed(top) >= speed(home) else home
        vain = vain + 1 if len(speeds) == known else 0


def _neighbours(space: Space, home: Values, rng: random.Random) -> Iterator[Values]:
    """Yield all points that differ in one knob, in random order."""
    changes = [
        (knob.path, choice)
        for knob in space.knobs
        for choice in knob.choices
        if not same_scalar(choice, home[knob.path])
    ]
    rng.shuffle(changes)
    return ({**home, path: choice} for path, choice in changes)


def _perturbed(space: Space, home: Values, rng: random.Random) -> Values:
    knobs = rng.sample(space.knobs, min(_CHANGED_KNOBS, len(space.knobs)))
    return {**home, **{knob.path: rng.choice(knob.choices) for knob in knobs}}


def _anywhere(space: Space, rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in space.knobs}
