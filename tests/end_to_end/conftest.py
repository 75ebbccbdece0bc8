"""Projects with real trainers, and `autotune` as processes; one such test at a time, whichever worker runs it."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.until import until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FRAMEWORKS = ROOT / "build" / "frameworks" / "bin" / "python"
"""Interpreter of an environment with PyTorch and JAX, and without autotune; ``scripts/setup --frameworks`` makes it."""

LIMIT_S = 280.0


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Wait until no other test here runs: real trainers that share the cores starve each other."""
    with open(Path(tempfile.gettempdir(), f"autotune-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Project:
    """Project of a user, in a folder that is hard to quote.

    Args:
        folder: Its folder.
        trainer: File of the trainer, copied to ``train.py``.
        config: Text of its config.yaml.
        command: Command of its section.
    """

    def __init__(self, folder: Path, trainer: Path, config: str, command: str = "{python} train.py {config}") -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.config = folder / "config.yaml"
        self.env = {**os.environ, "NO_COLOR": "1", "AUTOTUNE_DIR": str(folder / ".autotune")}
        (folder / "train.py").write_text(trainer.read_text())
        self.config.write_text(f'{config}autotune:\n    folder: "."\n    command: "{command}"\n')

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command to its end, which has that exit code; return what it printed on stdout."""
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == code, f"{' '.join(words)}: {process.returncode}\n{out}\n{err}"
        return out

    def search_until(self, pattern: str, *words: str, number: signal.Signals = signal.SIGINT) -> str:
        """Search until a line of the progress has a pattern, and end it.

        The budget is ample on a busy machine, and not more: today's config is measured for a sixteenth of it.
        """
        with self.start("search", "--config", "config.yaml", "--budget", "2m", "--no-apply", *words) as process:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if re.search(pattern, line):
                    break
            code, said = end(process, number)
        assert code in (-signal.SIGKILL, 130, 143), "".join(lines) + said
        return "".join(lines) + said

    def result_files(self) -> list[Path]:
        """Return the files of the finished trials."""
        return list((self.folder / ".autotune").rglob("result.json"))

    def trials(self) -> list[dict[str, Any]]:
        """Return the records of the finished trials, in order."""
        texts = [file.read_text() for file in self.result_files()]
        records = [json.loads(text) for text in texts if text]  # one may be just about to be written
        return sorted(records, key=lambda record: record["number"])

    def explored(self) -> dict[str, Any]:
        """Return a measured trial of other values than the config's."""
        first, *others = [trial for trial in self.trials() if trial["measurement"]]
        return next(trial for trial in others if trial["values"] != first["values"])

    def apply_and_revert(self) -> None:
        """Write the values of an explored trial into the config, in place, and take them out again."""
        before = self.config.read_bytes()
        self.run("apply", "--config", "config.yaml", "--trial", str(self.explored()["number"]), "--force")
        applied = self.config.read_bytes()
        assert applied != before
        assert len(applied.splitlines()) == len(before.splitlines())
        self.run("revert", "--config", "config.yaml")
        assert self.config.read_bytes() == before

    def tune(self, knobs: str, *keys: str) -> None:
        """Add what may vary, and other keys, to the section."""
        lines = [f"knobs: {{{knobs}}}", *keys]
        self.config.write_text(self.config.read_text() + "".join(f"    {line}\n" for line in lines))

    def processes(self) -> list[psutil.Process]:
        """Return the processes that have this project's trials in their environment, wherever they moved."""
        return [process for process in psutil.process_iter() if str(self.folder) in _environment(process)]

    def until_nothing_runs(self) -> None:
        """Wait until no process of the project is left."""
        until(lambda: not self.processes(), self.processes)


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("AUTOTUNE_TRIAL_DIR", "")
    except psutil.Error:
        return ""


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    """Project whose trainer waits instead of computing, and starts at once."""
    config = "mood: ''\ndata:\n    batch_size: 4  # samples per step\n    num_workers: 1\n"
    return Project(tmp_path / 'it\'s a "project"', HERE / "trainers" / "toy.py", config)


def interpreter_with(module: str) -> str:
    """Return an interpreter that has a framework; skip the test if there is none here."""
    for python in (FRAMEWORKS, Path(sys.executable)):
        if (
            python.exists()
            and not subprocess.run([python, "-c", f"import {module}"], stderr=-3, check=False).returncode
        ):
            return str(python)
    pytest.skip(f"{module} is not installed; scripts/setup --frameworks")


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal to a command; return its exit code and what it had to say."""
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, err
