"""One line for each thing that happens."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.events import IncumbentChanged, PhaseChanged, SearchEnded, SearchStarted, TrialProgress, TrialStarted
from autotune.records import Conditions, Ending, Purpose, Validity
from autotune.report.live import event_line, trial_line
from tests.report.conftest import BASELINE, MakeEnded
from tests.runs import measured

HUNG = {"ending": Ending.HUNG, "validity": Validity.NOT_STEADY}
PHASED = {"purpose": Purpose.DIAGNOSE, "conditions": Conditions(free_data_ratio=2.5)}
UNMEASURED = {"validity": Validity.UNMEASURED, "measurement": None, "speedup": None}


def busy(utilization: float) -> dict[str, Any]:
    """Change of a trial whose GPU was busy for that share."""
    return {"measurement": replace(measured(61.5), gpu_utilization=utilization)}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"changes": {"data.batch_size": 32}}, "trial 3 explore 61.5/s 1.50x 12s batch_size=32"),
        ({**UNMEASURED, "ending": Ending.CRASHED}, "trial 3 explore unmeasured 12s [crashed] today's values"),
        ({"validity": Validity.COLD, "speedup": None}, "trial 3 explore 61.5/s 12s [cold] today's values"),
        ({**HUNG, "speedup": None}, "trial 3 explore 61.5/s 12s [hung, not steady] today's values"),
        (busy(0.413), "trial 3 explore 61.5/s 1.50x 12s GPU 41 % today's values"),
        (busy(0.0), "trial 3 explore 61.5/s 1.50x 12s GPU 0 % today's values"),
        ({"purpose": Purpose.CONFIRM, "pair": 0}, "trial 3 pair 1 61.5/s 1.50x 12s today's values"),
        ({**PHASED, "speedup": None}, "trial 3 diagnose in phases 12s today's values"),
    ],
)
def test_a_trial_says_what_it_tried_and_what_came_of_it(
    trial_ended: MakeEnded, fields: dict[str, Any], line: str
) -> None:
    """On one line; how busy its GPU was where that was measured, and what is out of the ordinary."""
    assert " ".join(trial_line(trial_ended(**fields)).split()) == line


def test_each_thing_worth_knowing_has_a_line(trial_ended: MakeEnded) -> None:
    """With the time since the start in front; a log file gets one line per trial, not three."""
    about = {"search": "s", "study": "config-1234", "config": "config.yaml", "measures": "throughput"}
    started = SearchStarted(baseline=BASELINE, points=12345, trials_found=0, budget_s=1800.0, **about)
    first = "[  1.2s] study config-1234; score: throughput"
    assert event_line(started, 1.25) == first
    assert "7 earlier trials found" in str(event_line(replace(started, trials_found=7), 1.25))
    news = IncumbentChanged(values=BASELINE, changes={"data.cache": "memory"}, speedup=1.234)
    assert event_line(news, 65.0) == "[ 1m05s] best so far: 1.23x today's speed with cache=memory"
    assert event_line(PhaseChanged(phase="confirming", why="enough"), 5400.0) == "[ 1h30m] confirming: enough"
    assert str(event_line(trial_ended(), 1.0)).startswith("[  1.0s] trial 3")
    for event in (
        TrialStarted(number=0, purpose=Purpose.BASELINE, changes={}),
        TrialProgress(number=0, elapsed_s=1.0, steps=2),
        SearchEnded(verdict=None, trials=1, elapsed_s=2.0),
    ):
        assert event_line(event, 1.0) is None
