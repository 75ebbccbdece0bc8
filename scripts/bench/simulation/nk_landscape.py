"""NK landscapes: seeded interactions between random subsets of the knobs.

Each knob has a component that depends on the knob itself and on a few others, with an independent value for each
combination of theirs; the landscape is the sum of the components. The more knobs a component has, the more local optima
there are, and the less main effects say: S. Kauffman and E. Weinberger 1989, "The NK model of rugged fitness landscapes
and its application to maturation of the immune response"; S. Kauffman 1993, "The Origins of Order", chapter 2. Here
knobs have any number of values, and the values of components are standard normal instead of uniform.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Component:
    """Component of a landscape.

    Attributes:
        knobs: Numbers of the knobs that it depends on, ascending.
        values: Value of each combination of their positions.
    """

    knobs: tuple[int, ...]
    values: NDArray[np.float64]


def draw_components(rng: np.random.Generator, counts: Sequence[int], *, others: int) -> tuple[Component, ...]:
    """Draw a component for each knob.

    Args:
        rng: Source of the draw.
        counts: Number of choices of each knob.
        others: Number of other knobs that a component depends on, K in the literature; all, where there are fewer.
    """
    components = []
    for knob in range(len(counts)):
        rest = [other for other in range(len(counts)) if other != knob]
        knobs = sorted([knob, *map(int, rng.permutation(rest)[:others])])
        components.append(
            Component(knobs=tuple(knobs), values=rng.standard_normal([counts[number] for number in knobs]))
        )
    return tuple(components)


def landscape_at(components: Sequence[Component], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values of a landscape with mean 0 and variance 1 over all landscapes, shape (points,).

    Args:
        components: Its components.
        positions: Position of each point's value among the choices of each knob, shape (points, knobs).
    """
    total = np.zeros(len(positions))
    for component in components:
        total += component.values[tuple(positions[:, list(component.knobs)].T)]
    return total / math.sqrt(len(components))
