"""Promises of the pace of a training: that of its busiest loop, and only what the steps say."""

import pytest

from autotune.daemon.monitor import pace_of
from autotune.records import TraineeEvent


def steps(until_s, every_s, *, stream="1.0", **fields):
    """Steps at a regular pace."""
    count = round(until_s / every_s)
    return [TraineeEvent(kind="step", t_s=every_s * n, stream=stream, **fields) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("made", "pace"),
    [
        (steps(60.0, 0.5, samples=8, wait_s=0.4), (2.0, 16.0, 0.8)),
        (steps(5.0, 1.0), (1.0, None, None)),
        (sorted(steps(9.0, 0.5) + steps(9.0, 3.0, stream="2.0"), key=lambda event: event.t_s), (2.0, None, None)),
    ],
    ids=["all is known", "little is known", "workers report too"],
)
def test_the_pace_is_that_of_the_busiest_loop(made, pace):
    """What steps do not say is not known, and not nought."""
    found = pace_of(made)
    assert tuple(found.values()) == tuple(value and pytest.approx(value) for value in pace)


def test_one_step_has_no_pace():
    """Nor has none."""
    assert pace_of([]) is None
    assert pace_of(steps(1.0, 1.0)) is None
