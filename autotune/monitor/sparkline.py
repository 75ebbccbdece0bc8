"""Sparkline: a stretch of utilization as one line of characters."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-:=+*#"
"""For terminals that cannot show `BLOCKS`."""

_LONGEST_CELL_S = 1.0
_LEAST_COVERED = 0.25  # of a cell, else nothing is known of it
_ROUNDING = 1e-6  # an eighth must be the eighth that it is


def span_for(cells: int) -> float:
    """Return the seconds that a line of so many cells shows: a minute, or less where cells would be too long."""
    return next((span_s for span_s in (60.0, 30.0) if span_s <= cells * _LONGEST_CELL_S), 15.0)


def sparkline(
    windows: Sequence[tuple[float, float, float]], *, until_s: float, span_s: float, cells: int, levels: str = BLOCKS
) -> str:
    """Return the time up to ``until_s``, oldest first, a mean in each cell; a space stands for what is not known.

    Borders of cells stay where they are while time goes on, so that a line moves to the left and never flickers.

    Args:
        windows: End, length and busy share 0..1 of each driver window, in order of time.
        until_s: End of the line, but for less than a cell.
        span_s: Length of time that the line shows.
        cells: Length of the line.
        levels: Characters from idle to fully busy.
    """
    cell_s = span_s / cells
    last = math.floor(until_s / cell_s)
    borders_s = cell_s * np.arange(last - cells, last + 1)
    ends_s, lengths_s, busy = np.array(windows, dtype=float).reshape(-1, 3).T
    if not len(ends_s):
        return " " * cells
    # Stamps may be rounded so that windows overlap a little: each counts from the end of the one before.
    starts_s = np.maximum(ends_s - lengths_s, np.concatenate(([-math.inf], ends_s[:-1])))
    knots_s = np.column_stack((starts_s, ends_s)).ravel()
    covered_s = np.diff(np.interp(borders_s, knots_s, _integral(ends_s - starts_s)))
    busy_s = np.diff(np.interp(borders_s, knots_s, _integral((ends_s - starts_s) * busy)))
    known = covered_s > _LEAST_COVERED * cell_s
    shares = np.divide(busy_s, covered_s, out=np.zeros(cells), where=known)
    steps = np.minimum(len(levels) - 1, (shares * len(levels) + _ROUNDING).astype(int))
    return "".join(" " if step < 0 else levels[step] for step in np.where(known, steps, -1).tolist())


def _integral(amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sum at the start and the end of each window; straight in between, and level in a gap."""
    after = np.cumsum(amounts)
    return np.column_stack((after - amounts, after)).ravel()
