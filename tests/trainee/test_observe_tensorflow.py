"""Steps of TensorFlow trainers that report nothing, beyond the contract of test_observers.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trial.guard import Guard
from autotune.trial.warm import ZygoteRunner
from tests.trainee.conftest import TRAINERS, observe_run, sums_up

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


def test_a_loop_that_cannot_be_seen_is_said(run) -> None:
    """A loop inside one tf.function has no steps, and the user is told what to add to it."""
    seen = run(sys.executable, TRAINERS, "loop-inside", "--steps", 5)
    assert seen.steps_of("loop-inside") == []
    (note,) = [event.text or "" for event in seen.of("loop-inside") if event.kind == "note"]
    assert "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])" in note


def test_forks_of_a_warm_interpreter_are_seen(tmp_path: Path) -> None:
    """The observer is installed on their side of the fork, before TensorFlow is handed out to the trainer."""
    words = (sys.executable, TRAINERS, "loop-compiled", "--steps", 5)
    with Guard() as guard:
        runner = ZygoteRunner(guard, SystemClock())
        trials = [observe_run(runner, tmp_path / str(number), *words) for number in range(2)]
        assert runner.warm_starts == 1, runner.remarks
    for seen in trials:
        sums_up(seen, "loop-compiled")
