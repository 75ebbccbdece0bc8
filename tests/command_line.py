"""The command line in this process: whole commands in milliseconds, and searches in virtual time.

Verdicts, budgets, intervals, wording and exit codes of commands are tested through this: the trainer is simulated, and
everything else is what a user has. What needs a process, a terminal or a signal is in `tests/end_to_end`.
"""

import gc
import io
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch as patched

import pytest
import yaml

import autotune
from autotune import cli
from autotune.__main__ import main
from autotune.clock import VirtualClock
from autotune.commands.invocation import Watchdog
from autotune.search import problem
from autotune.study.identity import framework_versions
from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.until import DEADLINE_S

Trainer = Callable[[Mapping[str, Any]], Training]

_framework_versions = cache(framework_versions)

CONFIG = """\
# How the toy is trained.
data:
    batch_size: 4      # samples per step
    num_workers: 1   # loaders

out: {log_dir: logs}   # not the user's, in trials

autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [4, 16, 64]
        data.num_workers: [1, 2]
    trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
    folder: '.'
"""


def toy(config: Mapping[str, Any]) -> Training:
    """Train so that a second worker doubles the speed, and larger batches pay."""
    data = config["data"]
    step_s = (0.004 + 0.002 * data["batch_size"]) / min(data["num_workers"] or 1, 2)
    return Training(samples=data["batch_size"], step_s=step_s, noise=0.03, epoch=200)


@dataclass(frozen=True)
class Done:
    """Outcome of a command: its exit code, and what it printed."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Object that ``--json`` printed."""
        read: dict[str, Any] = json.loads(self.stdout)
        return read

    def well(self) -> "Done":
        """Return it, of a command that has to end well."""
        assert self.returncode == 0, self.stderr
        return self

    def refusal(self, code: int = 1) -> str:
        """Return what a command said on stderr that has to fail with this code."""
        assert self.returncode == code, self.stderr or self.stdout
        return self.stderr


class _Typed(io.TextIOWrapper):
    """Stream of what is typed on a terminal; None for no terminal."""

    def __init__(self, answers: str | None) -> None:
        super().__init__(io.BytesIO((answers or "").encode()))
        self._is_terminal = answers is not None

    def isatty(self) -> bool:
        return self._is_terminal


class CommandLine:
    """Commands typed in one project, with a simulated trainer behind its searches.

    Args:
        folder: Folder that the commands are typed in.
        trainer: The trainer, by its config.

    Attributes:
        clock: Virtual clock of the searches; it continues from one command to the next.
        simulator: Runs the trials, and keeps their plans.
        trainer: The trainer; another one may be put in its place between two commands.
    """

    def __init__(self, folder: Path, trainer: Trainer = toy, *, seed: int = 0) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.trainer = trainer
        training = lambda text: self.trainer(yaml.load(text, yaml.CSafeLoader))  # noqa: E731 -- it may change
        self.simulator = SimulatedRunner(self.clock, training, seed=seed)

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None, answers: str | None = None) -> Done:
        """Run one command; without a terminal, as in a script, unless it is to be answered.

        Args:
            arguments: What is typed after ``autotune``.
            env: Variables of its environment, besides those of the tests.
            answers: What is typed on the terminal, a line for each question.
        """
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            patch.chdir(self.folder)
            patch.setattr(sys, "stdin", _Typed(answers))
            if answers is not None:
                for module in ("search_run", "studies"):
                    patch.setattr(f"autotune.commands.{module}.is_attended", lambda: True)
                patch.setattr("autotune.commands.search_run.discard_typeahead", lambda: None)
            if problem.framework_versions is framework_versions:
                patch.setattr(problem, "framework_versions", _framework_versions)
            patch.setattr(Watchdog, "__enter__", lambda watchdog: watchdog)  # it watches real time
            with patched.dict(os.environ, env or {}):
                code = cli.run(arguments, simulator=self.simulator)
        printed = [stream.buffer.getvalue().decode() for stream in streams]  # type: ignore[attr-defined]
        return Done(code, *printed)

    def forked(self, *arguments: str) -> Done:
        """Run one command in a fork of this process, which takes signals as a user's does."""
        return run_forked(*arguments, cwd=self.folder, simulator=self.simulator)

    def search(self, *options: str, config: str = "config.yaml", budget: str = "5m") -> Done:
        """Search, without a question at its end."""
        return self("search", "--config", config, "--budget", budget, *options)


@pytest.fixture
def simulated(tmp_path: Path) -> CommandLine:
    """Project with a config and a simulated trainer, in a folder that is hard to quote."""
    return project_in(tmp_path / 'it\'s a "project"')


def project_in(folder: Path, trainer: Trainer = toy, config: str = CONFIG) -> CommandLine:
    """Make a project with a config and a simulated trainer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config)
    (folder / "train.py").write_text('"""Simulated: never run."""\n')
    os.makedirs(folder / ".autotune", mode=0o700, exist_ok=True)
    return CommandLine(folder, trainer)


_LEFT_OUT = ("autotune.__main__", "autotune.tf", "autotune.trainee", "autotune.workloads")
"""Parts of the package that no command loads."""


@cache
def preload() -> None:
    """Load what commands load when they need it: forks are spared that."""
    for module in pkgutil.walk_packages(autotune.__path__, "autotune."):
        if not module.name.startswith(_LEFT_OUT):
            with suppress(ModuleNotFoundError):  # a package of an extra is not everywhere
                import_module(module.name)


def run_forked(*arguments: str, cwd: Path, simulator: SimulatedRunner | None = None, umask: int = 0o022) -> Done:
    """Run one command in a fork of this process: a process of its own, without the second that imports take."""
    preload()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
        if (pid := os.fork()) == 0:
            os.umask(umask)
            become(arguments, cwd, simulator, [file.fileno() for file in (nothing, out, err)])
        if not select.select([ended := os.pidfd_open(pid)], [], [], DEADLINE_S)[0]:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(ended)
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


def become(
    arguments: Sequence[str], cwd: Path, simulator: SimulatedRunner | None, streams: Sequence[int] = (0, 1, 2)
) -> NoReturn:
    """Make this forked process one that runs the command with these streams, and end it."""
    gc.disable()  # it would collect objects of a TensorFlow whose threads were not forked
    code: object = 3
    try:
        for number, given in enumerate(streams):
            os.dup2(given, number)
            stream = io.FileIO(number, "w" if number else "r", closefd=False)
            buffered = io.BufferedWriter(stream) if number else io.BufferedReader(stream)
            setattr(sys, ("stdin", "stdout", "stderr")[number], io.TextIOWrapper(buffered, line_buffering=True))
        os.chdir(cwd)
        if simulator and problem.framework_versions is framework_versions:
            problem.framework_versions = _framework_versions
        run, sys.argv = cli.run, ["autotune", *arguments]
        cli.run = lambda arguments, **_: run(arguments, simulator=simulator)
        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


_INTERPRETERS = ("LANG", "LC_", "LD_", "MPL", "OMP_", "OPENBLAS", "PYTHON")
"""Beginnings of the names of variables that count when a process or a module is loaded."""

_AT_START = dict(os.environ)


def typed(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, umask: int = 0o022
) -> "subprocess.CompletedProcess[str]":
    """Run one command with real trials, in a process of its own.

    Args:
        arguments: What is typed after ``autotune``.
        cwd: Folder where it is typed.
        env: All of its environment; None is that of the tests.
        umask: Its umask.
    """
    environ = dict(os.environ if env is None else env)
    if any(name.startswith(_INTERPRETERS) and environ.get(name) != _AT_START.get(name) for name in environ | _AT_START):
        command = [sys.executable, "-m", "autotune", *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=DEADLINE_S, umask=umask,
        )  # fmt: skip
    with patched.dict(os.environ, environ, clear=True):
        done = run_forked(*arguments, cwd=cwd, umask=umask)
    return subprocess.CompletedProcess(["autotune", *arguments], done.returncode, done.stdout, done.stderr)
