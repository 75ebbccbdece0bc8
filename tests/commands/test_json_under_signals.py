"""^C, ^C^C and SIGTERM at any moment: one object for scripts, one line for people, nothing left running.

Most commands run in forks of this process, with a simulated trainer: signals come at exactly the moment that is tested.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune import cli
from autotune.search import problem
from autotune.trial import termination
from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, toy
from tests.commands.conftest import Autotune

CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "ended by SIGTERM")}
KINDS = {"sigint": (signal.SIGINT,), "twice": (signal.SIGINT, signal.SIGINT), "sigterm": (signal.SIGTERM,)}
SEARCH = ("search", "--config", "config.yaml", "--budget", "3m", "--json", "--no-apply")


def interrupting(kind: str, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is interrupted before it does what another does."""

    def interrupted(*arguments: Any) -> Any:
        for number in KINDS[kind]:
            os.kill(os.getpid(), number)
        return then(*arguments)

    return interrupted


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_gives_one_object(simulated: CommandLine, kind: str) -> None:
    """The answer so far, and the exit code for the signal; the finished trials are kept."""
    comes = interrupting(kind, toy)

    def trainer(config: Mapping[str, Any]) -> Training:
        return (comes if len(simulated.simulator.plans) == 3 else toy)(config)

    simulated.trainer = trainer
    done = simulated.forked(*SEARCH)
    code, word = CODES[KINDS[kind][0]]
    assert done.returncode == code
    assert (done.document["format"], done.document["verdict"], done.document["trials"]) == (2, "not_confirmed", 2)
    assert word in done.document["cautions"][-1]
    assert f"autotune: {word}; 2 finished trials are kept, the same command resumes" in done.stderr
    assert "Traceback" not in done.stderr
    assert simulated("study", "list", "--json").document["studies"][0]["trials"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_before_there_is_an_answer_the_object_is_the_word_for_the_signal(
    simulated: CommandLine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """While it opens."""
    monkeypatch.setattr(problem, "open_requested", interrupting(kind, problem.open_requested))
    done = simulated.forked(*SEARCH)
    code, word = CODES[KINDS[kind][0]]
    assert (done.returncode, done.document["error"]["kind"]) == (code, "interrupted")
    assert done.document["error"]["message"].startswith(word)
    assert done.stderr == f"autotune: {word}\n"


def test_ending_by_force_when_it_hangs(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later ^C ends a search whose orderly end hangs, and it still says one object."""

    def hangs(_request: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one came to nothing")

    monkeypatch.setattr(termination, "INSISTING_S", 0.0)
    monkeypatch.setattr(problem, "open_requested", hangs)
    done = simulated.forked(*SEARCH)
    assert (done.returncode, done.document["error"]["kind"]) == (130, "interrupted")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("kind", ["sigint", "sigterm"])
def test_a_signal_in_a_finalizer_is_not_lost(
    simulated: CommandLine, monkeypatch: pytest.MonkeyPatch, kind: str, is_slow: bool
) -> None:
    """Nothing can be raised there; the command ends a moment later, and says no traceback.

    On a slow machine the moment is over while what takes the lost exception still runs, where nothing can be raised
    either.
    """
    if is_slow:

        class Slow(threading.Timer):
            is_first = True

            def start(self) -> None:
                super().start()
                if Slow.is_first:
                    Slow.is_first = False
                    self.join()

        monkeypatch.setattr(threading, "Timer", Slow)

    class Finalized:
        __del__ = interrupting(kind, lambda _self: [None for _ in range(10_000)])

    def run(*_: object) -> None:
        Finalized()
        signal.pause()

    monkeypatch.setattr(cli, "_run", run)
    code, word = CODES[KINDS[kind][0]]
    done = simulated.forked("status")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"autotune: {word}\n")


@pytest.mark.parametrize("number", CODES, ids=["sigint", "sigterm"])
def test_a_signal_before_the_command_line_is_imported(project: Path, number: signal.Signals) -> None:
    """The moment between taking signals and the first import: the command's own code, no traceback."""
    program = (
        "import os, runpy, sys\n"
        "from autotune.trial import termination\n"
        "held = termination.signals_held\n"
        "def signals_held():\n"
        "    termination.signals_held = held\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return held()\n"
        "termination.signals_held = signals_held\n"
        "sys.argv = ['autotune', 'status', '--config', 'config.yaml']\n"
        "runpy.run_module('autotune', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False)
    code, word = CODES[number]
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == f"autotune: {word}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("run",), ("search", "--budget", "20s")])
def test_a_trainer_gets_signals_as_they_are(project: Path, autotune: Autotune, command: tuple[str, ...]) -> None:
    """Real training, and the trials of a search: nothing is ignored or blocked because autotune does so."""
    (project / "look.py").write_text(
        "import re, sys\n"
        "status = open('/proc/self/status').read()\n"
        "masks = [int(re.search(rf'^{name}:\\s*(\\w+)$', status, re.M)[1], 16) for name in ('SigIgn', 'SigBlk')]\n"
        "print([bool(mask >> (number - 1) & 1) for mask in masks for number in (2, 15)])\n"
    )
    config = project / "config.yaml"
    config.write_text(re.sub(r"command: .*", "command: '{python} look.py {config}'", config.read_text()))
    done = autotune(*command, "--config", "config.yaml")
    seen = [done.stdout] if command == ("run",) else [log.read_text() for log in project.rglob("stdout.log")]
    assert set(seen) == {"[False, False, False, False]\n"}
