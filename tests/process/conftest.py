"""Fixtures of the tests of trials: plans for the trainers in trainer.py, and a list of processes still running."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.process.guard import Guard
from autotune.process.launch import ProcessRunner
from autotune.records import Stop, TraineeEvent, TrialPlan

TRAINER = Path(__file__).with_name("trainer.py")


def running(trial_id: str) -> list[int]:
    """Return the processes, zombies left out, that carry this trial's name in their environment."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and f"AUTOTUNE_TRIAL_ID={trial_id}".encode() in (
                Path("/proc", name, "environ").read_bytes().split(b"\0")
            ):
                found.append(int(name))
        except OSError:  # a zombie, or gone
            continue
    return found


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    """Return as soon as the condition holds; fail the test if that takes too long."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it took too long"
        threading.Event().wait(0.01)


class Trials:
    """Maker of trials of trainer.py in one study's folder, each with a name that no other process has."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.clock = SystemClock()
        self.trial_id = f"{os.getpid()}-{time.monotonic_ns()}"
        self.folder = study / self.trial_id

    def plan(self, *words: object, **changes: object) -> TrialPlan:
        """Return the plan of a trial of the trainer with these arguments."""
        given = {
            "trial_id": self.trial_id,
            "folder": self.folder,
            "argv": (sys.executable, str(TRAINER), *map(str, words)),
            "cwd": self.study.parent,
            "env": {},
            "config_text": "batch_size: 8\n",
        }
        return TrialPlan(**(given | changes))

    def when_ready(self, events: Sequence[TraineeEvent]) -> Stop | None:
        """Stop the trial once the trainer says that it is ready."""
        return Stop.ENOUGH if (self.folder / "ready").exists() else None

    def soon(self, seconds: float = 60.0) -> float:
        """Return a deadline."""
        return self.clock.now_s() + seconds


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    """Maker of trials of trainer.py."""
    study = tmp_path / "runs" / "study"
    study.mkdir(parents=True)
    return Trials(study)


@pytest.fixture
def guard() -> Iterator[Guard]:
    """A guard, closed at the end of the test."""
    with Guard() as guard:
        yield guard


@pytest.fixture
def runner(guard: Guard) -> ProcessRunner:
    """A runner of real processes."""
    return ProcessRunner(guard, SystemClock())


@pytest.fixture
def stop_guard() -> Callable[[Guard, str], None]:
    """Send a signal to the guard, once."""
    done: list[str] = []

    def send(guard: Guard, name: str) -> None:
        if not done and guard.pid is not None:
            done.append(name)
            os.kill(guard.pid, getattr(signal, name))

    return send
