"""``autotune --version`` and ``autotune completion``, as their users have them."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from tests.command_line import typed

BUG_REPORT = ("Python ", "cores", "GPU: ", "dependencies: ", "frameworks: ")


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, cwd=Path.cwd(), env={**os.environ, **env})


def test_the_version_is_what_a_bug_report_needs() -> None:
    """One screen: autotune, Python, the system, the GPU's driver and the versions of what is needed."""
    done = _run("--version")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"autotune {autotune.__version__}"
    assert len(lines) < 12
    for words in BUG_REPORT:
        assert words in done.stdout
    assert re.search(r"optuna \d", done.stdout) or "not installed as a package" in done.stdout


def test_the_version_tells_nothing_of_its_user() -> None:
    """No path, no host, no user and no variable of the environment: it can be pasted anywhere."""
    done = _run("--version", AUTOTUNE_STORAGE="postgresql://me:hunter2@host/name", SECRET_TOKEN="hunter2")
    assert "hunter2" not in done.stdout
    assert str(Path.home()) not in done.stdout
    assert sys.prefix not in done.stdout
    assert socket.gethostname() not in done.stdout.split()
    assert getpass.getuser() not in done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    """The script calls autotune back, and the shell itself, where it is here, finds no fault in it."""
    done = _run("completion", shell)
    assert done.returncode == 0
    assert "_AUTOTUNE_COMPLETE" in done.stdout
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False, timeout=30
        )
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "word"),
    [("autotune sea", "search"), ("autotune search --same", "--same-training"), ("autotune study ex", "export")],
)
def test_commands_and_options_are_completed(line: str, word: str) -> None:
    """What bash would ask for with a press of the tab key."""
    words = line.split(" ")
    done = _run(_AUTOTUNE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert word in done.stdout
    assert done.stderr == ""
