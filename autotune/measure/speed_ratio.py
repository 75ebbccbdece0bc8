"""Ratios of speeds that were measured in turn, with their intervals."""

import math
from collections.abc import Sequence

from autotune.results import Ratio
from autotune.statistics import moderated_interval

_ROUND_SD = 0.015
"""Prior standard deviation of ln speed between rounds of phases within one trial."""
_PRIOR_DF = 2.0


def ratio_of(pairs: Sequence[tuple[float, float]], *, sd: float = _ROUND_SD) -> Ratio | None:
    """Return the ratio of the first of each pair to the second, with its 95 % interval; None without pairs.

    Args:
        pairs: Speeds that were measured one after the other.
        sd: Standard deviation of the ln of one of them, as known before; it counts like two degrees of freedom.
    """
    differences = [math.log(one / other) for one, other in pairs if one > 0 and other > 0]
    if not differences:
        return None
    mean, half = moderated_interval(differences, 2.0 * sd**2, _PRIOR_DF)
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def without(share: float, error: float) -> Ratio:
    """Return the speed without something that takes a share of the time, over the speed with it.

    Args:
        share: Share of the time, 0..1.
        error: Half-width of its 95 % interval.
    """
    low, high = (min(max(bound, 0.0), 0.99) for bound in (share - error, share + error))
    return Ratio(ratio=1.0 / (1.0 - min(max(share, 0.0), 0.99)), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
