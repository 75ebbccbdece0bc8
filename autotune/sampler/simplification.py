"""Simplification: the answer with as few changes of the baseline as are worth making.

Of points that cannot be told apart the simplest is the best one: a change may matter to the training, and somebody has
to understand it.
"""

from collections.abc import Callable, Sequence

from autotune.records import Values
from autotune.space.knob import same_scalar

INDISTINGUISHABLE = 0.02
"""Largest difference in ln score of points that count as equally good."""


def changes(values: Values, baseline: Values) -> list[str]:
    """Return the paths of the knobs that a point changes."""
    return [path for path, value in values.items() if not same_scalar(value, baseline[path])]


def simplified(
    values: Values,
    baseline: Values,
    least: float,
    believed: Callable[[Sequence[Values]], Sequence[float]],
    may_try: Callable[[Values], bool],
) -> Values:
    """Take changes back, the one that costs least first, as long as the point stays good enough.

    Args:
        values: The point.
        baseline: The baseline; its values are those that changes are taken back to.
        least: The ln score that the result has to be believed to have.
        believed: Returns the ln score that points are believed to have, measured or not.
        may_try: Returns whether a point may be tried.

    Returns:
        The simplified point; the same one if each of its changes is believed to matter.
    """
    while paths := changes(values, baseline):
        simpler = [point for path in paths if may_try(point := {**values, path: baseline[path]})]
        beliefs = believed(simpler) if simpler else ()
        best = max(range(len(simpler)), key=lambda number: beliefs[number], default=None)
        if best is None or beliefs[best] < least:
            break
        values = simpler[best]
    return values
