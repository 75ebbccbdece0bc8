"""Parameters of a study's Optuna trials: knobs by their dotted keys, with the values that the user's config holds.

For the life of an Optuna study the range of a number may change freely; its kind, and a list of categories, may not.
"""

from collections.abc import Mapping, Sequence

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.records import Scalar
from autotune.space.knob import is_number, same_scalar

Distributions = Mapping[str, BaseDistribution]
"""Distribution of each parameter, by the dotted key of its knob."""


def distribution_of(choices: Sequence[Scalar]) -> BaseDistribution:
    """Return the distribution of a knob with these choices: the range of numbers, else the list."""
    numbers = [choice for choice in choices if isinstance(choice, int | float) and is_number(choice)]
    if len(numbers) < len(choices):
        return CategoricalDistribution(tuple(choices))
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(min(numbers), max(numbers))  # type: ignore[arg-type]
    return FloatDistribution(float(min(numbers)), float(max(numbers)))


def united(known: Distributions, wanted: Distributions) -> Distributions | None:
    """Return the distributions with which a study that knows some parameters takes trials of others.

    Args:
        known: The study's.
        wanted: Those of the trials.

    Returns:
        Those of the trials, lists of categories as the study has them; None if it cannot take them.
    """
    found: dict[str, BaseDistribution] = {}
    for path, distribution in wanted.items():
        there = known.get(path, distribution)
        if type(there) is not type(distribution):
            return None
        if isinstance(there, CategoricalDistribution) and isinstance(distribution, CategoricalDistribution):
            if not all(_is_among(choice, there.choices) for choice in distribution.choices):
                return None
            distribution = there
        found[path] = distribution
    return found


def _is_among(value: Scalar, choices: Sequence[Scalar]) -> bool:
    return any(same_scalar(value, choice) for choice in choices)
