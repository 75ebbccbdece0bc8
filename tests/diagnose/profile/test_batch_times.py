"""Tests of the spread of batch times, and of their cycle."""

import numpy as np
import pytest

from autotune.diagnose.pipeline_profile import batch_times


def test_the_spread_is_that_of_all_stretches() -> None:
    """Mean, deviation, extremes and percentiles are those of all batches together."""
    times = batch_times([np.array([0.010, 0.020]), np.array([]), np.array([0.030])])
    assert times is not None
    assert (times.batches, times.min_ms, times.median_ms, times.max_ms) == (3, 10.0, 20.0, 30.0)
    assert times.mean_ms == pytest.approx(20.0)
    assert times.sd_ms == pytest.approx(10.0)
    assert times.variation == pytest.approx(0.5)
    assert times.cycle is None


def test_one_batch_has_no_spread() -> None:
    """A single batch is too few."""
    assert batch_times([np.array([0.01])]) is None
    assert batch_times([]) is None


@pytest.mark.parametrize("every", [2, 5, 16])
def test_a_slow_batch_that_comes_round_is_found(every: int) -> None:
    """Every n-th batch is slow: the cycle has n batches, wherever a stretch begins."""
    random = np.random.default_rng(0)
    stretches = []
    for first in (0, 3, 1):
        number = np.arange(first, first + max(40, 8 * every))
        stretches.append(np.where(number % every == 0, 0.05, 0.01) + random.normal(0, 0.001, len(number)))
    times = batch_times(stretches)
    assert times is not None
    assert times.cycle is not None
    assert times.cycle.batches == pytest.approx(every, rel=0.05)
    assert times.cycle.slow_ms == pytest.approx(50.0, rel=0.2)
    assert times.cycle.others_ms == pytest.approx(10.0, rel=0.2)


@pytest.mark.parametrize("seed", range(60))
def test_noise_has_no_cycle(seed: int) -> None:
    """Batches whose times vary by chance, also with a few long ones, go in no cycle."""
    random = np.random.default_rng(seed)
    times = batch_times([random.lognormal(-4, 0.4, 120) + 0.2 * (random.random(120) < 0.05)])
    assert times is not None
    assert times.cycle is None


def test_steady_batches_have_no_cycle() -> None:
    """A cycle that nobody would notice is none."""
    times = batch_times([np.where(np.arange(100) % 5 == 0, 0.0101, 0.01)])
    assert times is not None
    assert times.cycle is None
