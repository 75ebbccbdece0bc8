"""Growth of the memory that a trial uses: one that goes on, unlike the filling of a cache."""

from statistics import median

from autotune.measure.probe import MemorySeries

_LEAST_READINGS = 12
_LEAST_S = 8.0
_LEAST_SHARE = 0.01  # of the memory in use, in a third of the time: allocators breathe by as much
_LEAST_BYTES = 1 << 24
_GOES_ON = 0.5  # times the growth of the third before


def growth_bytes_per_s(series: MemorySeries) -> float | None:
    """Return the growth of the memory in use that still goes on at the end; 0 where there is none.

    The medians of the three thirds of the time are compared: a single reading, such as one while workers are
    replaced, says nothing, and growth that has slowed down by half comes to an end by itself.

    Args:
        series: Memory in use over time.

    Returns:
        None if there are too few readings, or too short a time.
    """
    if len(series) < _LEAST_READINGS or series[-1][0] - series[0][0] < _LEAST_S:
        return None
    begin_s, length_s = series[0][0], series[-1][0] - series[0][0]
    thirds: list[list[int]] = [[], [], []]
    for t_s, used_bytes in series:
        thirds[min(2, int(3 * (t_s - begin_s) / length_s))].append(used_bytes)
    if not all(thirds):
        return None
    first, second, third = (median(part) for part in thirds)
    growth = third - second
    if growth < max(_LEAST_BYTES, _LEAST_SHARE * third) or growth < _GOES_ON * (second - first):
        return 0.0
    return (third - first) / (2 / 3 * length_s)
