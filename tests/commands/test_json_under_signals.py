"""^C, ^C^C and SIGTERM at any moment: one object for scripts, one line for people, nothing left running."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_search import left_running

CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "ended by SIGTERM")}
KINDS = {"sigint": (signal.SIGINT,), "twice": (signal.SIGINT, signal.SIGINT), "sigterm": (signal.SIGTERM,)}


def _start(project: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments, "--config", "config.yaml"],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def listens(process: "subprocess.Popen[str]") -> None:
    """Wait until both signals have a handler, which is long before anything is read."""
    both = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        if found and int(found[1], 16) & both == both:
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never listened")


def _line(word: str) -> "Callable[[subprocess.Popen[str]], None]":
    def wait(process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        next(line for line in process.stderr if word in line)

    return wait


MOMENTS = {"at once": listens, "while it opens": _line("knob"), "while a trial goes on": _line("exploring")}


@pytest.mark.parametrize(
    ("moment", "kind"),
    [*((moment, kind) for moment in MOMENTS for kind in ("sigint", "sigterm")), ("while a trial goes on", "twice")],
)
def test_a_search_gives_one_object(project: Path, moment: str, kind: str) -> None:
    """The answer so far if there is one, else the word for the signal; the exit code says it in any case."""
    with _start(project, "search", "--json", "--budget", "60s") as search:
        MOMENTS[moment](search)
        for number in KINDS[kind]:
            search.send_signal(number)
        said, aside = search.communicate(timeout=60)
    code, word = CODES[KINDS[kind][0]]
    assert search.returncode == code
    document = json.loads(said)
    assert document["format"] == 2
    if moment == "while a trial goes on":
        assert document["verdict"] == "no_change"
        assert document["trials"] >= 1
        assert word in document["cautions"][-1]
        assert re.search(r"finished trial(s are| is) kept, the same command goes on", aside)
    else:
        assert document["error"]["kind"] == "interrupted"
        assert document["error"]["message"].startswith(word)
    assert f"autotune: {word}" in aside
    assert "Traceback" not in aside
    assert left_running(project) == []


@pytest.mark.parametrize("number", CODES, ids=["sigint", "sigterm"])
@pytest.mark.parametrize("command", ["search", "run"])
def test_every_command_ends_with_its_code(project: Path, command: str, number: signal.Signals) -> None:
    """The exit code is its own from the first moment that it listens, also during imports; never the signal itself."""
    with _start(project, command) as process:
        listens(process)
        process.send_signal(number)
        said, aside = process.communicate(timeout=60)
    code, word = CODES[number]
    assert process.returncode == code, aside
    assert said == ""
    assert aside.splitlines()[-1] == f"autotune: {word}"
    assert "Traceback" not in aside


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
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, timeout=60)
    code, word = CODES[number]
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == f"autotune: {word}"
    assert "Traceback" not in done.stderr


def test_a_trainer_gets_signals_as_they_are(project: Path) -> None:
    """Real training, and the trials of a search: nothing is ignored or caught because autotune does so."""
    look = project / "look.py"
    look.write_text(
        "import re, sys\n"
        "status = open('/proc/self/status').read()\n"
        "masks = [int(re.search(rf'^{name}:\\s*(\\w+)$', status, re.M)[1], 16) for name in ('SigIgn', 'SigBlk')]\n"
        "print([bool(mask >> (number - 1) & 1) for mask in masks for number in (2, 15)])\n"
    )
    config = project / "config.yaml"
    text = config.read_text()
    config.write_text(re.sub(r"command: .*", "command: '{python} look.py {config}'", text))
    with _start(project, "run") as process:
        said, _ = process.communicate(timeout=60)
    assert said == "[False, False, False, False]\n"
    with _start(project, "search", "--budget", "20s") as process:
        process.communicate(timeout=60)
    logs = [log.read_text() for log in project.glob(".autotune/**/stdout.log")]
    assert logs
    assert set(logs) == {"[False, False, False, False]\n"}


def test_ending_by_force_when_it_hangs(project: Path) -> None:
    """A later ^C ends a search whose orderly end hangs, and it still says one object."""
    code = (
        "import sys, time\n"
        "from autotune.trial import termination\n"
        "termination.INSISTING_S = 0.0\n"
        "termination.take_signals()\n"
        "from autotune.search import problem\n"
        "def hanging(*_, **__):\n"
        "    try:\n"
        "        print('here', file=sys.stderr, flush=True)\n"
        "        time.sleep(1000)\n"
        "    finally:\n"
        "        print('there', file=sys.stderr, flush=True)\n"
        "        while True:\n"
        "            pass\n"
        "problem.open_problem = hanging\n"
        "from autotune.cli import run\n"
        "run(['search', '--config', 'config.yaml', '--json'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project, env={**os.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        for word in ("here", "there"):
            _line(word)(process)
            process.send_signal(signal.SIGINT)
        said, aside = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(said)["error"]["kind"] == "interrupted"
    assert "Traceback" not in aside


def test_a_signal_in_a_finalizer_is_not_lost(project: Path) -> None:
    """Nothing can be raised there; the command ends a moment later, and says no traceback."""
    program = (
        "import os, signal, sys, time\n"
        "from autotune import cli\n"
        "from autotune.trial.termination import take_signals\n"
        "class Finalized:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.001)\n"
        "def run(*_):\n"
        "    Finalized()\n"
        "    time.sleep(60)\n"
        "cli._run = run\n"
        "take_signals()\n"
        "sys.exit(cli.run(['status']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "autotune: ended by SIGTERM\n")
