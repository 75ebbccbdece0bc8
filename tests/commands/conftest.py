"""Project with a config and a trainer, and the command line as its user has it."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from tests.command_line import CONFIG as SIMULATED
from tests.command_line import CommandLine, become, preload, typed
from tests.until import DEADLINE_S

TRAINER = Path(__file__).parents[1] / "toys" / "toy_trainer.py"
CONFIG = SIMULATED.replace("train.py", "'%s'").replace("    folder: '.'\n", "")
"""Config of a real trainer, whose path is filled in."""

Autotune = Callable[..., subprocess.CompletedProcess[str]]


def config_of_many() -> str:
    """Return a config with more values to try than the toy trainer's own."""
    text = CONFIG % TRAINER
    for few, many in {"[4, 16, 64]": list(range(4, 65, 4)), "[1, 2]": list(range(1, 9))}.items():
        assert few in text
        text = text.replace(few, str(many))
    return text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Folder with a path that is hard to quote, and a config in it."""
    folder = tmp_path / 'it\'s a "project"'
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG % TRAINER)
    return folder


@pytest.fixture
def autotune(project: Path) -> Autotune:
    """Run one command in the project, as a process of its own."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return typed(*arguments, cwd=project, env={**os.environ, **(env or {})})

    return run


Answers = Mapping[bytes, bytes | signal.Signals | Callable[[], object]]


def answered(project: Path, answers: Answers, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command on a terminal, as a process of its own; see `talked`.

    Args:
        project: Directory to run it in.
        answers: What to type, send or do, by what is seen on the screen.
        arguments: Arguments of the command.
        env: Environment; None for the tests' own.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project)
        os.execve(sys.executable, [sys.executable, "-m", "autotune", *arguments], env or os.environ)
    return talked(pid, terminal, answers)


def on_terminal(
    commands: CommandLine, answers: Answers, *arguments: str, in_background: bool = False, at_rest: bool = False
) -> tuple[int, str]:
    """Run a command in virtual time on a real terminal, in a fork of this process; see `talked`."""
    preload()
    pid, terminal = pty.fork()
    if pid == 0:
        if in_background and (child := os.fork()):
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if in_background:
            os.setpgid(0, 0)
        become(arguments, commands.folder, commands.simulator)
    return talked(pid, terminal, answers, at_rest=at_rest)


def talked(pid: int, terminal: int, answers: Answers, *, at_rest: bool = False) -> tuple[int, str]:
    """Type an answer, send a signal, or do something, when its question is seen on a terminal, until its process ends.

    Args:
        pid: The process.
        terminal: Its terminal.
        answers: What to type, send or do, by what is seen on the screen.
        at_rest: Whether to answer only when the command does nothing but wait: a signal that comes just before it
            begins to read from the terminal is noticed when the next line is typed.

    Returns:
        The exit status and the screen, without its colours.
    """
    screen, left, end_s = b"", dict(answers), time.monotonic() + DEADLINE_S
    waits = not at_rest
    switches = -1
    while time.monotonic() < end_s:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                screen += os.read(terminal, 4096)
            except OSError:  # the other side is closed
                break
        elif not waits and any(question in screen for question in left):
            before, switches = switches, psutil.Process(pid).num_ctx_switches().voluntary
            waits = before == switches and psutil.Process(pid).status() == psutil.STATUS_SLEEPING
        for question in [question for question in left if waits and question in screen]:
            answer = left.pop(question)
            if isinstance(answer, signal.Signals):
                os.kill(pid, answer)
            elif callable(answer):
                answer()
            else:
                os.write(terminal, answer)
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.decode(errors="replace").replace("\r\n", "\n"))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def left_running(project: Path) -> list[int]:
    """List the processes that carry a trial of this project in their environment and are not dead."""
    left = []
    for process in psutil.process_iter():
        try:
            folder = process.environ().get("AUTOTUNE_TRIAL_DIR", "")
            if folder.startswith(str(project)) and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
        except psutil.Error:
            continue
    return left
