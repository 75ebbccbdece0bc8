"""Fixtures of the observer's tests: trainers that report nothing, run as a search runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SystemClock
from autotune.records import TraineeEvent, TrialExit, TrialPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner, Runner
from scripts.bench.overhead import observer as observe

_PYTHONS = (sys.executable, "/usr/bin/python3", *os.environ.get("AUTOTUNE_TEST_PYTHONS", "").split(os.pathsep))
TRAINERS = Path(observe.__file__).with_name("observed_trainers.py")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A run: how it ended, what the trainers in it knew of themselves, and what was seen of them."""

    ended: TrialExit
    folder: TrialFolder
    events: Sequence[TraineeEvent]

    @property
    def stdout(self) -> str:
        """Output of the trainer."""
        return self.folder.stdout.read_text()

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Numbers that each trainer knows of itself, by style."""
        lines = [json.loads(line) for line in self.stdout.splitlines() if line.startswith('{"style"')]
        return {line["style"]: line for line in lines}

    def of(self, style: str) -> list[TraineeEvent]:
        """Return the events observed of that trainer."""
        return [event for event in self.events if event.pid == self.facts[style]["pid"]]

    def steps_of(self, style: str) -> list[TraineeEvent]:
        """Its steps."""
        return [event for event in self.of(style) if event.kind == "step"]


def observe_run(runner: Runner, folder: Path, *argv: object, **env: str) -> Observed:
    """Runs a command as a search does; it has to end well."""
    plan = TrialPlan(
        trial_id="study/run",
        folder=folder,
        argv=tuple(map(str, argv)),
        cwd=folder.parent,
        env={"TF_CPP_MIN_LOG_LEVEL": "2", **env},
        config_text="",
    )
    events: list[TraineeEvent] = []
    clock = SystemClock()

    def watch(news: Sequence[TraineeEvent]) -> None:
        events.extend(event for event in news if event.kind != "launched")  # the runner's own

    ended = runner.run(plan, watch, clock.now_s() + 170.0)
    seen = Observed(ended=ended, folder=TrialFolder(folder), events=events)
    assert (ended.exit_code, ended.stop) == (0, None), seen.folder.stderr_tail()
    return seen


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Observed]]:
    """Runs a command in a fresh process."""
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())
        yield lambda *argv, **env: observe_run(runner, tmp_path / f"run-{len(os.listdir(tmp_path))}", *argv, **env)


def interpreter_with(*packages: str) -> str:
    """An interpreter that can import the packages; without one the tests of them are skipped.

    Ours, the system's, or one of those that the variable AUTOTUNE_TEST_PYTHONS lists, separated like paths.
    """
    for python in _PYTHONS:
        code = f"from importlib.util import find_spec; import sys; sys.exit(None in map(find_spec, {packages!r}))"
        if Path(python).is_file() and subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    pytest.skip(f"no interpreter here has {' and '.join(packages)}")


def sums_up(trial: Observed, style: str, *, waits: bool = True, samples: bool = True) -> None:
    """Asserts that all was seen that the trainer knows of itself: steps, samples, and how long it waited."""
    facts, steps = trial.facts[style], trial.steps_of(style)
    assert len(steps) == facts["steps"]
    assert [step.t_s for step in steps] == sorted(step.t_s for step in steps)
    if samples:
        assert sum(step.samples or 0.0 for step in steps) == pytest.approx(facts["samples"])
    if waits:
        waits_s = [step.wait_s for step in steps if step.wait_s is not None]
        assert len(waits_s) >= facts["steps"] - 1  # whoever makes its own batches is not seen to wait for the first
        mean_s, known_s = sum(waits_s) / len(waits_s), facts["waited_s"] / facts["steps"]
        # What the trainer knows of its loader leaves out how the framework comes to call it: some milliseconds, more on
        # a busy machine, where a part of it passes during a step too. How exact it is otherwise, `python -m
        # scripts.bench observe` tells.
        assert 0.7 * known_s <= mean_s <= 1.1 * known_s + 0.02
