"""Median of measured values with their range, as a text."""

from collections.abc import Sequence
from statistics import median


def spread(values: Sequence[float]) -> str:
    """Return ``0.75 [0.71, 0.93]``, in three significant digits."""
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
