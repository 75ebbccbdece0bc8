"""Notifier: the user's command for events, which may hang, fail, print without end or be missing."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.clock import SystemClock
from autotune.trial.children import MOST_QUEUED, Notifier
from tests.until import until

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/", "LC_ALL": "C", "WANDB_API_KEY": "hunter2", "AUTOTUNE_STORAGE": "x"}


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Command that runs some Python."""
    return (sys.executable, "-S", "-c", code, *arguments)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log of a notifier."""
    return tmp_path / "notify.log"


def logged(log: Path, lines: int) -> list[dict[str, Any]]:
    """Wait for so many lines in the log, and return them."""
    until(lambda: log.exists() and log.read_bytes().count(b"\n") == lines)
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def begin(log: Path) -> Iterator[Callable[..., Notifier]]:
    """Begins to notify, and ends that with the test."""
    begun = list[Notifier]()

    def begin(argv: tuple[str, ...]) -> Notifier:
        begun.append(Notifier(argv, log, SystemClock(), ENVIRON))
        return begun[-1]

    yield begin
    for notifier in begun:
        notifier.close()


def test_the_command_gets_each_event_on_its_input(begin: Callable[..., Notifier], log: Path, tmp_path: Path) -> None:
    """As one JSON object, whole, in order; arguments are passed as they are."""
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + sys.stdin.read())"
    notifier = begin(python(code, str(out), "a b;$(x)"))
    events = [{"kind": "slower", "n": n, "text": "ü\n" * 100_000} for n in range(3)]
    for event in events:
        notifier.notify(event)
    assert [entry["ended"] for entry in logged(log, 3)] == ["well"] * 3
    lines = out.read_text().splitlines()
    assert [json.loads(line.removeprefix("a b;$(x)")) for line in lines] == events


def test_the_command_gets_no_secrets(begin: Callable[..., Notifier], log: Path) -> None:
    """Its environment is what a list allows, and it runs in a session of its own."""
    begin(python("import os; print(sorted(os.environ), os.getsid(0) == os.getpid(), os.getcwd())")).notify({})
    assert logged(log, 1)[0]["output"] == "['HOME', 'LC_ALL', 'PATH'] True /\n"


HANGS = (
    "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); "
    "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_command_that_hangs_is_ended(
    begin: Callable[..., Notifier], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """With SIGTERM after its time, or with the daemon, then with SIGKILL, its children too."""
    monkeypatch.setattr("autotune.trial.children.LIMIT_S", 600.0 if is_closed else 3.0)
    monkeypatch.setattr("autotune.trial.children.GRACE_S", 0.5)
    out = tmp_path / "out"
    notifier = begin(python(HANGS, str(out)))
    notifier.notify({"n": 1})
    until(lambda: out.exists() and out.read_text().count("\n") == 2)
    if is_closed:
        notifier.close()
    why = "was stopped with the daemon" if is_closed else "took longer than 3 s and was stopped"
    assert logged(log, 1)[0]["ended"] == why
    for pid in map(int, out.read_text().split()):
        until(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_command_that_prints_without_end_fills_nothing(begin: Callable[..., Notifier], log: Path) -> None:
    """It never waits for us either; the beginning of what it said is kept."""
    begin(python("print('begin'); [print('x' * 1000) for _ in range(5000)]")).notify({})
    (entry,) = logged(log, 1)
    assert entry["ended"] == "well"
    assert entry["output"].startswith("begin\nxxx")
    assert log.stat().st_size < 10_000


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/nowhere/at/all",), "cannot be started: No such file or directory"),
        (("a\0b",), "cannot be started"),
        (python("raise SystemExit(3)"), "failed with status 3"),
        (python("import os; os.kill(os.getpid(), 9)"), "failed with signal 9"),
    ],
)
def test_a_failure_is_noted_and_logged(
    begin: Callable[..., Notifier], log: Path, caplog: pytest.LogCaptureFixture, argv: tuple[str, ...], words: str
) -> None:
    """With its reason; the notifier goes on."""
    notifier = begin(argv)
    for _ in range(3):
        notifier.notify({})
    assert [entry["ended"].startswith(words) for entry in logged(log, 3)] == [True] * 3
    assert words in caplog.text


def test_the_oldest_events_are_dropped(begin: Callable[..., Notifier], log: Path, tmp_path: Path) -> None:
    """While the command takes long; the latest are told."""
    out, go = tmp_path / "out", tmp_path / "go"
    code = "while [ ! -e $1 ]; do sleep 0.01; done; cat >> $0"
    notifier = begin(("/bin/sh", "-c", code, str(out), str(go)))
    notifier.notify({"n": 0})
    until(lambda: not notifier._waiting)
    for n in range(1, MOST_QUEUED + 6):
        notifier.notify({"n": n})
    go.touch()
    logged(log, MOST_QUEUED + 1)
    assert [json.loads(line)["n"] for line in out.read_text().splitlines()] == [0, *range(6, MOST_QUEUED + 6)]
