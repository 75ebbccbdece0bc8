"""Tests of the events of a trial by phase."""

import numpy as np
import pytest

from autotune.diagnose.pipeline_profile import phased_events
from autotune.records import TraineeEvent, TrialPhase


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
