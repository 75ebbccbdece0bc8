"""Tests of the parts of a profile of the pipeline: spread and cycle of batch times, loading stages, phases."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.diagnose.profiles import batch_times, phased_events, read_loading_stages
from autotune.records import TraineeEvent, TrialPhase


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


def test_no_file_has_no_stages(tmp_path: Path) -> None:
    """Trainers that wrap nothing have no stages."""
    assert read_loading_stages(tmp_path / "none") == ()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"v": 2, "stages": {}},
        {"v": 1, "stages": []},
        {"v": 1, "stages": {"\x1b[2J": {"calls": 1, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": 0, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": True, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": 1, "busy_s": float("nan")}}},
        {"v": 1, "stages": {"read": {"calls": 1, "busy_s": -1.0}}},
        {"v": 1, "stages": {"read": 7}},
        {"v": 1, "stages": {f"{a}{b}": {"calls": 1, "busy_s": 1} for a in "abcdefg" for b in "abcdefg"}},
    ],
    ids=lambda document: str(document)[:40],
)
def test_anything_else_is_passed_over(document: Any, tmp_path: Path) -> None:
    """What a trainer could have written there instead is not shown."""
    (tmp_path / "stages").write_text(json.dumps(document))
    assert read_loading_stages(tmp_path / "stages") == ()
    (tmp_path / "stages").write_text("[" * 60_000)
    assert read_loading_stages(tmp_path / "stages") == ()


def steps(begin_s: float, count: int, step_s: float, wait_s: float) -> list[TraineeEvent]:
    """Steps one after the other."""
    return [
        TraineeEvent(kind="step", t_s=begin_s + step_s * number, stream="7.0", wait_s=wait_s, samples=8.0)
        for number in range(1, count + 1)
    ]


def begins(phase: TrialPhase, t_s: float) -> TraineeEvent:
    """Begin of a phase."""
    return TraineeEvent(kind="phase", t_s=t_s, stream="7.0", phase=phase)


def load(t_s: float, duration_s: float) -> TraineeEvent:
    """One batch that was drawn."""
    return TraineeEvent(kind="load", t_s=t_s, stream="7.0", duration_s=duration_s, batches=1, samples=8.0)


def test_each_phase_has_its_own_times() -> None:
    """Steps of training and replay are kept apart, the warm-up counts for nothing, buffered batches neither."""
    events = [
        *steps(0.0, 9, 1.0, 0.9),
        begins(TrialPhase.REPLAY, 10.0),
        *steps(10.0, 20, 0.01, 0.0),
        begins(TrialPhase.LOAD, 11.0),
        *[load(11.0, 1e-6) for _ in range(5)],
        *[load(12.0 + number, 0.05) for number in range(20)],
        begins(TrialPhase.TRAIN, 40.0),
        *steps(40.0, 20, 0.06, 0.04),
        begins(TrialPhase.REPLAY, 50.0),
    ]
    found = phased_events(events)
    assert found.cycles == 1
    assert found.load_samples == 8.0
    assert np.concatenate([window.durations_s for window in found.train]) == pytest.approx(0.06)
    assert np.concatenate([window.durations_s for window in found.replay]) == pytest.approx(0.01)
    assert np.concatenate(found.loads_s) == pytest.approx(0.05)


def test_without_phases_all_is_training() -> None:
    """A trainer that cannot be taken through phases is profiled by its own steps, and the reason is kept."""
    why = TraineeEvent(kind="unphased", t_s=0.5, stream="7.0", text="load: it has no loader")
    found = phased_events([why, *steps(0.0, 30, 0.1, 0.05)])
    assert len(found.train) == 1
    assert found.loads_s == ()
    assert found.why_no_load == "load: it has no loader"
