"""Fixtures of the observers' tests: trainers that report nothing, in this process, or run as a search runs them.

In this process the observers are those of a trial, and TensorFlow is imported once. Frameworks that these tests'
environment does not have are in other interpreters, see `interpreter_with`.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SystemClock
from autotune.records import TraineeEvent, TrialPlan
from autotune.trainee import observe
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, process_stream
from autotune.trial.folders import TrialFolder
from autotune.trial.launch import Guard, ProcessRunner, Runner
from autotune.trial.step_files import StepReader
from scripts.bench.overhead import observed_trainers
from tests.until import DEADLINE_S

ROOT = Path(__file__).parents[2]
_PYTHONS = (
    *(sys.executable, "/usr/bin/python3", str(ROOT / "build" / "frameworks" / "bin" / "python")),
    *os.environ.get("AUTOTUNE_TEST_PYTHONS", "").split(os.pathsep),
)
TRAINERS = Path(observed_trainers.__file__)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A run: its folder, what the trainers in it knew of themselves, and what was seen of them."""

    folder: TrialFolder
    events: Sequence[TraineeEvent]
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, style: str, kind: str | None = None) -> list[TraineeEvent]:
        """Return the events observed of that trainer, all or those of a kind."""
        pid = self.facts[style]["pid"]
        return [event for event in self.events if event.pid == pid and kind in (None, event.kind)]

    def kind(self, kind: str) -> list[TraineeEvent]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind]


def observe_run(runner: Runner, folder: Path, *argv: object, **env: str) -> Observed:
    """Run a command as a search does; it has to end well."""
    plan = TrialPlan(
        trial_id="study/run",
        folder=folder,
        argv=tuple(map(str, argv)),
        cwd=folder.parent,
        env={"TF_CPP_MIN_LOG_LEVEL": "2", **env},
        config_text="",
    )
    events: list[TraineeEvent] = []

    def watch(news: Sequence[TraineeEvent]) -> None:
        events.extend(event for event in news if event.kind != "launched")  # the runner's own

    ended = runner.run(plan, watch, SystemClock().now_s() + DEADLINE_S)
    trial = TrialFolder(folder)
    assert (ended.exit_code, ended.stop) == (0, None), trial.stderr_tail()
    lines = [json.loads(line) for line in trial.stdout.read_text().splitlines() if line.startswith('{"style"')]
    return Observed(folder=trial, events=events, facts={line["style"]: line for line in lines})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Observed]]:
    """Run a command in a fresh process."""
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())
        yield lambda *argv, **env: observe_run(runner, tmp_path / f"run-{len(os.listdir(tmp_path))}", *argv, **env)


def observe_here(folder: Path, train: Callable[[], object], **env: str) -> Observed:
    """Train in this process as in a trial: with the observers, which are taken out again."""
    (folder / "outputs").mkdir(parents=True)
    ends: list[Callable[[], object]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {TRIAL_DIR_VARIABLE: str(folder), **env}.items():
            patch.setenv(name, value)
        patch.setattr(observe, "installed", [])
        patch.setattr(sys, "meta_path", list(sys.meta_path))
        process_stream.forget()
        with patch.context() as at_end:
            at_end.setattr(atexit, "register", ends.append)
            at_end.setattr(os, "register_at_fork", lambda **_: None)
            observe.install()
        (instrumentation,) = observe.installed
        try:
            with warnings.catch_warnings(action="ignore"):  # the trainer's own
                train()
            ends[0]()
        finally:
            instrumentation.on = False
            for place in reversed(instrumentation.replaced):
                setattr(place.owner, place.name, place.original)
            process_stream.forget()
    events = [event for event in StepReader(folder).poll() if event.kind != "files"]
    return Observed(folder=TrialFolder(folder), events=events)


@pytest.fixture
def here(tmp_path: Path, tensorflow: Any) -> Callable[..., Observed]:
    """Run a function or the text of a script in this process, which has TensorFlow, as in a trial."""

    def run_here(train: Callable[[], object] | str, **env: str) -> Observed:
        if not isinstance(train, str):
            return observe_here(tmp_path / "run", train, **env)
        script = tmp_path / "train.py"
        script.write_text(train)
        return observe_here(tmp_path / "run", lambda: runpy.run_path(str(script)), **env)

    return run_here


@pytest.fixture(scope="session")
def tensorflow() -> Any:
    """TensorFlow and Keras in this process, on two logical CPUs."""
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    observed_trainers.tf_strategy(2)
    return tf


def interpreter_with(*packages: str) -> str:
    """Return an interpreter that can import the packages; without one the tests of them are skipped.

    Ours, the system's, that of ``scripts/setup --frameworks``, or one of those that the variable AUTOTUNE_TEST_PYTHONS
    lists, separated like paths.
    """
    for python in _PYTHONS:
        code = f"from importlib.util import find_spec; import sys; sys.exit(None in map(find_spec, {packages!r}))"
        if Path(python).is_file() and subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    pytest.skip(f"no interpreter here has {' and '.join(packages)}")


def sums_up(trial: Observed, style: str, *, sleep_s: float = 0.0, samples: bool = True) -> None:
    """Assert that all was seen that the trainer knows of itself: steps, samples, and how long it waited.

    Args:
        sleep_s: Time that its loader takes for a batch, within each fetch; 0 for one whose waits are not seen.
    """
    facts, steps = trial.facts[style], trial.of(style, "step")
    assert len(steps) == facts["steps"]
    assert [step.t_s for step in steps] == sorted(step.t_s for step in steps)
    if samples:
        assert sum(step.samples or 0.0 for step in steps) == pytest.approx(facts["samples"])
    if sleep_s:
        waits_s = [step.wait_s for step in steps if step.wait_s is not None]
        assert len(waits_s) >= facts["steps"] - 1  # whoever makes its own batches is not seen to wait for the first
        assert sum(waits_s) >= 0.99 * sleep_s * len(waits_s)
        assert sum(waits_s) <= steps[-1].t_s - trial.events[0].t_s
