"""Promises of a point's utilization: when it may be said, in which words, and what it is worth in samples."""

import math

import numpy as np
import pytest

from autotune.measure.utilization import (
    Oscillation,
    Pattern,
    Segment,
    Utilization,
    against_reference,
    best_busy_rate,
    describe,
    pooled_utilization,
)
from autotune.records import GpuRole


def run(busy, *, window_s=0.25, asked_s=None):
    """One trial's driver windows, without gaps."""
    return Segment(
        asked_s=window_s * len(busy) if asked_s is None else asked_s,
        ends_s=window_s * np.arange(1, len(busy) + 1),
        lengths_s=np.full(len(busy), window_s),
        busy=np.asarray(busy, dtype=float),
    )


def seen(pattern, **fields):
    """A utilization of which there is enough."""
    levels = {"low": 0.02, "high": 0.40, "mean": 0.21, "p10": 0.02, "duty": 0.5, **fields}
    return Utilization(samples=60, covered_fraction=0.9, oscillation=Oscillation(pattern=pattern, **levels))


def test_runs_count_by_their_time_not_by_their_number():
    """A trial of 30 s at 90 % and one of 10 s at 50 % are 80 % together, whatever the length of their windows."""
    pooled = pooled_utilization([run([0.9] * 30, window_s=1.0), run([0.5] * 60, window_s=1 / 6)])
    assert pooled.mean == pytest.approx(0.8)
    assert (pooled.samples, pooled.covered_fraction) == (90, 1.0)


def test_nothing_is_said_below_60_driver_samples():
    """59 are not enough, 60 are, from however many runs."""
    few = pooled_utilization([run([0.9] * 30), run([0.9] * 29)])
    assert few.mean is None
    assert describe(few) == "not enough yet: 59 of 60 driver samples"
    enough = pooled_utilization([run([0.9] * 30), run([0.9] * 30)])
    assert enough.missing is None
    assert describe(enough) == "90 % flat"


def test_nothing_is_said_where_a_tenth_of_the_time_is_missing():
    """Coverage counts over all trials, also over one in which the driver said nothing."""
    assert pooled_utilization([run([0.9] * 60, asked_s=15.0 / 0.9)]).mean == pytest.approx(0.9)
    sparse = pooled_utilization([run([0.9] * 60, asked_s=15.0 / 0.899)])
    assert sparse.mean is None
    assert describe(sparse) == "not enough yet: 89 % of the time covered, 90 % needed"
    silent = pooled_utilization([run([0.9] * 60), run([], asked_s=15.0)])
    assert (silent.covered_fraction, silent.mean) == (0.5, None)


@pytest.mark.parametrize(
    ("utilization", "words"),
    [
        (seen(Pattern.CYCLIC, period_s=2.1), "2-40 % cyclic, period 2.1 s"),
        (seen(Pattern.CYCLIC, period_s=0.567), "2-40 % cyclic, period 0.57 s"),
        (seen(Pattern.CYCLIC, period_s=12.3), "2-40 % cyclic, period 12 s"),
        (seen(Pattern.CYCLIC, period_s=120.4), "2-40 % cyclic, period 120 s"),
        (seen(Pattern.FLAT, mean=0.912), "91 % flat"),
        (seen(Pattern.BURSTY), "2-40 % bursty"),
        (seen(Pattern.DRIFT, mean=0.5, rise=0.6), "20 to 80 % drifting up"),
        (seen(Pattern.DRIFT, mean=0.9, rise=-0.4), "100 to 70 % drifting down"),
    ],
)
def test_people_read_a_sentence(utilization, words):
    """Levels in whole percent, the period with two digits, never a share that cannot be."""
    assert describe(utilization) == words


def test_the_best_rate_is_not_known_before_a_point_is_repeated_and_busy():
    """One trial is luck, and a GPU busy for under 30 % of the time, or not known how long, shows no limit."""
    assert best_busy_rate([]) is None
    assert best_busy_rate([(0.9, [100.0])]) is None
    for busy, is_known in ((0.29, False), (None, False), (0.3, True)):
        assert (best_busy_rate([(busy, [100.0, 101.0])]) is not None) is is_known


def test_repeats_of_other_points_narrow_the_interval():
    """Three pairs of trials know better than one how much runs differ, also those that cannot hold the record."""
    record = (0.5, [100.0, 102.0])
    others = [(0.1, [50.0, 51.0]), (None, [20.0, 20.4])]
    alone, helped = best_busy_rate([record]), best_busy_rate([record, *others])
    assert alone < helped < 101.0
    # All differ by 2 %: the spread is the same, the quantile is that of three degrees of freedom, 3.182.
    centre = math.sqrt(100.0 * 102.0)
    assert helped == pytest.approx(centre / math.exp(3.1824 * math.log(1.02) / 2), rel=1e-4)


def test_a_lucky_point_does_not_set_the_limit():
    """The highest lower bound wins, not the highest mean: two trials far apart say little."""
    steady = (0.9, [100.0, 101.0, 99.0, 100.0])
    lucky = (0.9, [70.0, 180.0])
    best = best_busy_rate([steady, lucky])
    assert best == pytest.approx(best_busy_rate([lucky, steady]))
    assert best < 100.0


@pytest.mark.parametrize(
    ("role", "around"), [(GpuRole.DATA, (0.59, 0.6, 0.8, 0.81)), (GpuRole.MODEL, (0.84, 0.85, 0.95, 0.96))]
)
def test_the_references_of_two_gpus_include_their_ends(role, around):
    """60-80 % for the GPU of the data, 85-95 % for that of the model."""
    found = [against_reference(utilization, role) for utilization in around]
    assert found == ["below", "within", "within", "above"]
