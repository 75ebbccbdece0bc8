"""Simplification: the answer with as few changes of the baseline as are worth making.

Of points that cannot be told apart the simplest is the best one: a change may matter to the training, and somebody has
to understand it.
"""

from collections.abc import Callable, Sequence

from autotune.records import Values
from autotune.space.space import Space

INDISTINGUISHABLE = 0.02
"""Largest difference in ln score of points that count as equally good."""


def simplified(
    values: Values,
    space: Space,
    least: float,
    believed: Callable[[Sequence[Values]], Sequence[float]],
    may_try: Callable[[Values], bool],
) -> Values:
    """Take changes back, the one that costs least first, as long as the point stays good enough.

    Args:
        values: The point.
        space: The search space; changes are taken back to the values of its baseline.
        least: The ln score that the result has to be believed to have.
        believed: Returns the ln score that points are believed to have, measured or not.
        may_try: Returns whether a point may be tried.

    Returns:
        The simplified point; the same one if each of its changes is believed to matter.
    """
    while paths := space.changes(values):
        fewer = [space.without_inert({**values, path: space.baseline[path]}) for path in paths]
        simpler = [point for point in fewer if may_try(point)]
        beliefs = believed(simpler) if simpler else ()
        best = max(range(len(simpler)), key=lambda number: beliefs[number], default=None)
        if best is None or beliefs[best] < least:
            break
        values = simpler[best]
    return values
