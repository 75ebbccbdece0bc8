"""Growth of memory that goes on."""

import math
import random
from collections.abc import Callable

import pytest

from autotune.measure.probe import MemorySeries
from autotune.measure.window import growth_bytes_per_s

GIB = 1 << 30
MIB = 1 << 20


def series(used: Callable[[float], float], *, length_s: float = 60.0, readings: int = 120) -> MemorySeries:
    """Return a trial's memory, read at even intervals."""
    return tuple((100.0 + length_s * n / readings, int(used(length_s * n / readings))) for n in range(readings))


def test_steady_growth_is_told_with_its_rate() -> None:
    """4 MiB a second, readings that vary by some."""
    rng = random.Random(0)
    grown = growth_bytes_per_s(series(lambda t_s: 2 * GIB + 4 * MIB * t_s + rng.gauss(0, 10 * MIB)))
    assert grown == pytest.approx(4 * MIB, rel=0.1)


def test_growth_after_memory_was_freed_is_told_with_its_rate() -> None:
    """What the first third freed is no part of it: the rate is never below 0."""
    grown = growth_bytes_per_s(series(lambda t_s: (12 if t_s < 20 else 2) * GIB + 4 * MIB * t_s))
    assert grown == pytest.approx(4 * MIB, rel=0.1)


@pytest.mark.parametrize(
    "used",
    [
        lambda _t_s: 2 * GIB,
        lambda t_s: 2 * GIB + 200 * MIB * math.sin(t_s),
        lambda t_s: 2 * GIB + GIB * (1 - math.exp(-t_s / 8)),
        lambda t_s: 2 * GIB + (GIB if t_s > 25 else 0),
        lambda t_s: 2 * GIB + (GIB if 50 < t_s < 52 else 0),
        lambda t_s: 2 * GIB - 10 * MIB * t_s,
        lambda t_s: 2 * GIB + 0.1 * MIB * t_s,
    ],
    ids=["flat", "breathing", "a cache that fills", "a step", "a peak", "falling", "hardly"],
)
def test_what_comes_to_an_end_is_no_growth(used: Callable[[float], float]) -> None:
    """Caches, allocators and replaced workers."""
    assert growth_bytes_per_s(series(used)) == 0.0
