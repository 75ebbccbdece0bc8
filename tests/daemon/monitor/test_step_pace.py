"""Promises of the pace of a training: that of the last minute, and only what the steps say."""

import pytest

from autotune.daemon.monitor import RecentSteps
from autotune.records import TraineeEvent


def steps(from_s, until_s, every_s, *, stream="1.0", **fields):
    """Steps at a regular pace."""
    count = round((until_s - from_s) / every_s)
    return [TraineeEvent(kind="step", t_s=from_s + every_s * n, stream=stream, **fields) for n in range(1, count + 1)]


def test_the_pace_is_that_of_the_last_minute():
    """A training that has become slower is shown as slow as it is now."""
    recent = RecentSteps(60.0)
    recent.add(steps(0.0, 100.0, 0.1, samples=8, wait_s=0.05))
    recent.add(steps(100.0, 170.0, 0.5, samples=8, wait_s=0.4))
    pace = recent.pace(170.0)
    assert pace.steps_per_s == pytest.approx(2.0)
    assert pace.samples_per_s == pytest.approx(16.0)
    assert pace.data_wait_fraction == pytest.approx(0.8)
    assert pace.newest_s == pytest.approx(170.0)


def test_what_steps_do_not_say_is_not_known():
    """Not nought."""
    recent = RecentSteps(60.0)
    recent.add([*steps(0.0, 5.0, 1.0), TraineeEvent(kind="epoch_end", t_s=5.5, stream="1.0")])
    pace = recent.pace(6.0)
    assert (pace.steps_per_s, pace.samples_per_s, pace.data_wait_fraction) == (pytest.approx(1.0), None, None)


def test_one_step_has_no_pace():
    """Nor has none, nor one that came long ago."""
    recent = RecentSteps(60.0)
    assert recent.pace(1.0) is None
    recent.add(steps(0.0, 1.0, 1.0))
    assert recent.pace(2.0) is None
    recent.add(steps(1.0, 3.0, 1.0))
    assert recent.pace(3.0) is not None
    assert recent.pace(100.0) is None


def test_the_busiest_loop_counts():
    """Workers that report too are not added to it."""
    recent = RecentSteps(60.0)
    recent.add(sorted(steps(0.0, 9.0, 0.5) + steps(0.0, 9.0, 3.0, stream="2.0"), key=lambda event: event.t_s))
    assert recent.pace(9.0).steps_per_s == pytest.approx(2.0)
