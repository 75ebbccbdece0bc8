"""The events as lines of a file."""

import json
import logging
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.events import PhaseChanged, SearchEnded, TrialProgress
from autotune.records import Verdict
from autotune.search.open import EventLog
from tests.report.conftest import BEST, MakeEnded


def test_each_event_is_one_line_of_json(tmp_path: Path, trial_ended: MakeEnded) -> None:
    """With a format, a name and a stamp; whole trials included, progress within a trial not."""
    path, clock = tmp_path / "s.events.jsonl", VirtualClock()
    log = EventLog(path, clock)
    log(trial_ended(detail="two\nlines, é"))
    log(TrialProgress(number=0, elapsed_s=1.0, steps=3))
    clock.wait(1.5)
    log(SearchEnded(verdict=Verdict.BETTER, trials=1, elapsed_s=2.0, speedup=1.5, changes={"a": 1}))
    ended, last = (json.loads(line) for line in path.read_text().splitlines())
    assert (ended["format"], ended["event"], ended["utc"]) == (2, "TrialEnded", "2030-01-01T00:00:00.000+00:00")
    assert ended["trial"]["values"] == BEST
    assert ended["trial"]["detail"] == "two\nlines, é"
    assert ended["trial"]["measurement"]["samples_per_s"] == 61.5
    stamp = {"format": 2, "event": "SearchEnded", "utc": "2030-01-01T00:00:01.500+00:00"}
    found = {"verdict": "better", "trials": 1, "elapsed_s": 2.0, "speedup": 1.5, "changes": {"a": 1}}
    assert last == {**stamp, **found}


def test_another_process_can_follow(tmp_path: Path) -> None:
    """An event is in the file as soon as it was told."""
    path = tmp_path / "s.events.jsonl"
    log = EventLog(path, VirtualClock())
    for number in range(1, 4):
        log(PhaseChanged(phase="exploring", why="so"))
        assert len(path.read_text().splitlines()) == number


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/s.events.jsonl"])
def test_a_disk_that_is_full_does_not_stop_the_search(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The record is the truth, this is a view: it is only warned."""
    with caplog.at_level(logging.WARNING):
        EventLog(Path(path), VirtualClock())(PhaseChanged(phase="exploring", why="so"))
    assert path in caplog.text
