"""Fixtures of the tests of trials: plans for the trainers in trainer.py, and a list of processes still running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.records import Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial.launch import Guard, ProcessRunner, Runner, Watch
from autotune.trial.warm import ZygoteRunner
from tests.until import until

TRAINER = Path(__file__).with_name("trainer.py")
SAME_ENVIRONMENT = {"PYTEST_CURRENT_TEST": ""}
"""Variables of trials that a zygote may serve in several tests, or in a fixture and its test."""
STARTS_THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


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


def next_tick(folder: Path) -> None:
    """Wait until the file system's clock shows another time: of changes within one tick only the last can be seen."""
    probe = folder / ".tick"
    probe.touch()
    began_ns = probe.stat().st_ctime_ns
    until(lambda: (probe.touch(), probe.stat().st_ctime_ns > began_ns)[1])
    probe.unlink()


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


class Project:
    """Trainer's folder with its interpreter, and the trials of it."""

    def __init__(self, folder: Path, python: str, runner: ZygoteRunner, remarks: list[str]) -> None:
        self.folder = folder
        self.python = python
        self.runner = runner
        self.remarks = remarks
        self.clock = SystemClock()
        self.trials = 0

    def run(
        self, *words: str, runner: Runner | None = None, watch: Watch = lambda _: None, **changes: object
    ) -> tuple[TrialExit, str, str]:
        """Run the interpreter with these arguments; return its exit and its output."""
        self.trials += 1
        plan = TrialPlan(
            **{
                "trial_id": f"study/{self.trials}",
                "folder": self.folder / "runs" / str(self.trials),
                "argv": (self.python, *words),
                "cwd": self.folder,
                "env": SAME_ENVIRONMENT,
                "config_text": "",
                **changes,
            }
        )
        ended = (runner or self.runner).run(plan, watch, self.clock.now_s() + 60.0)
        logs = (plan.folder / name for name in ("stdout.log", "stderr.log"))
        said, error = (log.read_text() if log.exists() else "" for log in logs)  # none of a trial that did not begin
        return ended, said, error

    def said(self, *words: str, times: int = 2, **changes: object) -> list[str]:
        """Run the interpreter that often, with ``train.py`` and these arguments; return the outputs.

        The first trial shows its imports, the second and later ones are forks, if nothing is in the way.
        """
        return [self.run("train.py", *words, **changes)[1] for _ in range(times)]

    @property
    def forks(self) -> tuple[int, int]:
        """Numbers of the trials that were forks, and of the forks that were given up."""
        return self.runner.warm_starts, self.runner.fallbacks

    def write(self, name: str, text: str) -> None:
        """Write a module of the trainer's."""
        (self.folder / name).write_text(text)


@pytest.fixture
def remarks() -> list[str]:
    """What the runner has said to the user."""
    return []


@pytest.fixture
def zygotes(guard: Guard, remarks: list[str], monkeypatch: pytest.MonkeyPatch) -> ZygoteRunner:
    """Runner with zygotes, also for imports that take no time."""
    monkeypatch.setattr("autotune.trial.warm.LEAST_IMPORT_S", 0.0)
    return ZygoteRunner(guard, SystemClock(), remarks.append)


@pytest.fixture(scope="session")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another environment than autotune's."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture
def other(venv: Path, tmp_path: Path, zygotes: ZygoteRunner, remarks: list[str]) -> Iterator[Project]:
    """A trainer in the other environment, whose packages the test installs."""
    yield Project(tmp_path, str(venv / "bin" / "python"), zygotes, remarks)
    for package in site_packages(venv).glob("*.py"):
        package.unlink()


def site_packages(venv: Path) -> Path:
    """Return the folder of installed packages."""
    return next(venv.glob("lib/python*/site-packages"))


def install(project: Project, name: str, text: str) -> None:
    """Install a module in the trainer's environment; a slash in its name is a package's."""
    path = site_packages(Path(project.python).parents[1]) / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
