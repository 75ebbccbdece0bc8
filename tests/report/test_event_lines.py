"""One line for each thing that happens."""

from dataclasses import replace

from autotune.events import IncumbentChanged, PhaseChanged, SearchEnded, SearchStarted, TrialProgress, TrialStarted
from autotune.records import Ending, Purpose, Validity
from autotune.report.live import event_line, running_line, trial_line
from tests.report.conftest import BASELINE, MakeEnded
from tests.runs import measured


def test_a_trial_says_what_it_tried_and_what_came_of_it(trial_ended: MakeEnded) -> None:
    """Number, purpose, speed with its unit, ratio, time and changes are on one line."""
    line = trial_line(trial_ended(changes={"data.batch_size": 32}))
    for part in ("trial 3", "explore", "61.5/s", "1.50x", "12s", "batch_size=32"):
        assert part in line
    assert "[" not in line
    assert "\n" not in line


def test_failures_and_numbers_that_do_not_count_are_named(trial_ended: MakeEnded) -> None:
    """Only what is out of the ordinary is worth a word."""
    crashed = trial_ended(ending=Ending.CRASHED, validity=Validity.UNMEASURED, measurement=None, speedup=None)
    assert "[crashed]" in trial_line(crashed)
    assert "no numbers" in trial_line(crashed)
    assert "[cold]" in trial_line(trial_ended(validity=Validity.COLD, speedup=None))
    assert "[hung, not steady]" in trial_line(
        trial_ended(ending=Ending.HUNG, validity=Validity.NOT_STEADY, speedup=None)
    )
    assert "x" not in trial_line(crashed).partition("baseline")[0].replace("explore", "")


def test_a_trial_says_how_busy_its_gpu_was(trial_ended: MakeEnded) -> None:
    """In whole percent, where it was measured; never 0 % where it was not."""
    busy = replace(measured(61.5), gpu_utilization=0.413)
    assert "  GPU 41 %  today's values" in trial_line(trial_ended(measurement=busy))
    assert "GPU 0 %" in trial_line(trial_ended(measurement=replace(busy, gpu_utilization=0.0)))
    assert "GPU" not in trial_line(trial_ended())
    assert "GPU" not in trial_line(trial_ended(measurement=None, validity=Validity.UNMEASURED))


def test_people_count_pairs_from_one(trial_ended: MakeEnded) -> None:
    """The first pair is pair 1."""
    assert "pair 1 " in trial_line(trial_ended(purpose=Purpose.CONFIRM, pair=0))
    started = TrialStarted(number=7, purpose=Purpose.CONFIRM, changes={"data.cache": "none"}, pair=3)
    assert running_line(started) == "trial 7 pair 4: cache=none"
    assert (
        running_line(TrialStarted(number=0, purpose=Purpose.BASELINE, changes={})) == "trial 0 baseline: today's values"
    )


def test_the_first_line_says_what_is_searched() -> None:
    """Study, knobs, combinations, budget, and earlier trials if there are any."""
    started = SearchStarted(
        search="s",
        study="config-1234",
        config="config.yaml",
        baseline=BASELINE,
        points=12345,
        trials_found=0,
        budget_s=1800.0,
        measures="throughput",
    )
    line = event_line(started, 1.25)
    assert line == ("[  1.2s] study config-1234: 3 knobs, 12,345 combinations, budget 30m; score: throughput")
    assert "7 earlier trials found" in str(event_line(SearchStarted(**{**vars(started), "trials_found": 7}), 1.25))


def test_news_and_phases_have_a_line(trial_ended: MakeEnded) -> None:
    """With the time since the start in front."""
    news = IncumbentChanged(values=BASELINE, changes={"data.cache": "memory"}, speedup=1.234)
    assert event_line(news, 65.0) == "[ 1m05s] best so far: 1.23x today with cache=memory"
    assert event_line(PhaseChanged(phase="confirming", why="enough"), 5400.0) == "[ 1h30m] confirming: enough"
    assert str(event_line(trial_ended(), 1.0)).startswith("[  1.0s] trial 3")


def test_what_needs_no_line_has_none() -> None:
    """A log file gets one line per trial, not three."""
    for event in (
        TrialStarted(number=0, purpose=Purpose.BASELINE, changes={}),
        TrialProgress(number=0, elapsed_s=1.0, steps=2),
        SearchEnded(verdict=None, trials=1, elapsed_s=2.0),
    ):
        assert event_line(event, 1.0) is None
