"""Notifier: the user's command for events, which may hang, fail, print without end or be missing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.clock import VirtualClock
from autotune.trial.notifier import MOST_QUEUED, Notifier
from tests.until import until

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/", "LC_ALL": "C", "WANDB_API_KEY": "hunter2", "AUTOTUNE_STORAGE": "x"}


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Command that runs some Python."""
    return (sys.executable, "-S", "-c", code, *arguments)


def finish(notifier: Notifier) -> None:
    """Go on until nothing is left to do."""
    until(lambda: notifier.tick() or notifier.is_idle)  # type: ignore[func-returns-value]


def logged(log: Path) -> list[dict[str, Any]]:
    """What the log says."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log of a notifier."""
    return tmp_path / "notify.log"


def test_the_command_gets_each_event_on_its_input(log: Path, tmp_path: Path) -> None:
    """As one JSON object, whole, in order; arguments are passed as they are."""
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + sys.stdin.read())"
    notifier = Notifier(python(code, str(out), "a b;$(x)"), log, VirtualClock(), ENVIRON)
    events = [{"kind": "slower", "n": n, "text": "ü\n" * 100_000} for n in range(3)]
    for event in events:
        notifier.notify(event)
    finish(notifier)
    lines = out.read_text().splitlines()
    assert [json.loads(line.removeprefix("a b;$(x)")) for line in lines] == events
    assert [entry["ended"] for entry in logged(log)] == ["well"] * 3
    assert notifier.failed == 0


def test_the_command_gets_no_secrets(log: Path) -> None:
    """Its environment is what a list allows, and it runs in a session of its own."""
    code = "import os; print(sorted(os.environ), os.getsid(0) == os.getpid(), os.getcwd())"
    notifier = Notifier(python(code), log, VirtualClock(), ENVIRON)
    notifier.notify({})
    finish(notifier)
    assert logged(log)[0]["output"] == "['HOME', 'LC_ALL', 'PATH'] True /\n"


def test_a_command_that_hangs_is_ended(log: Path) -> None:
    """With SIGTERM after its time, then with SIGKILL, its children too; the loop never waits."""
    clock = VirtualClock()
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); "
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    notifier = Notifier(python(code), log, clock, ENVIRON)
    notifier.notify({"n": 1})
    notifier.notify({"n": 2})

    def printed() -> list[bytes]:
        notifier.tick()
        return notifier._running.output.split(b"\n")[:-1]

    until(lambda: len(printed()) == 2)
    pids = [int(pid) for pid in printed()]
    for passes_s in (29.0, 2.0, 4.0):  # nothing, SIGTERM, SIGKILL
        assert not log.exists()
        clock.wait(passes_s)
        notifier.tick()
    until(lambda: notifier.tick() or log.exists())  # type: ignore[func-returns-value]
    assert logged(log)[0]["ended"] == "took longer than 30 s, and was ended"
    for pid in pids:
        until(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    notifier.close()
    finish(notifier)
    assert notifier.failed == 2


def test_a_command_that_prints_without_end_fills_nothing(log: Path) -> None:
    """It never waits for us either; the beginning of what it said is kept."""
    notifier = Notifier(
        python("print('begin'); [print('x' * 1000) for _ in range(5000)]"), log, VirtualClock(), ENVIRON
    )
    notifier.notify({})
    finish(notifier)
    (entry,) = logged(log)
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
    log: Path, caplog: pytest.LogCaptureFixture, argv: tuple[str, ...], words: str
) -> None:
    """With its reason; the notifier goes on."""
    notifier = Notifier(argv, log, VirtualClock(), ENVIRON)
    for _ in range(3):
        notifier.notify({})
    finish(notifier)
    assert [entry["ended"].startswith(words) for entry in logged(log)] == [True] * 3
    assert words in caplog.text
    assert notifier.failed == 3


def test_the_oldest_events_are_dropped_and_counted(log: Path, tmp_path: Path) -> None:
    """While the command takes long; the latest are told."""
    out, go = tmp_path / "out", tmp_path / "go"
    code = (
        "import json, os, sys, time\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
        "open(sys.argv[1], 'a').write(f\"{json.load(sys.stdin)['n']} \")"
    )
    notifier = Notifier(python(code, str(out), str(go)), log, VirtualClock(), ENVIRON)
    for n in range(MOST_QUEUED + 6):
        notifier.notify({"n": n})
    assert notifier.dropped == 5
    while len(notifier._waiting) > 3:
        notifier._waiting.popleft()
    go.touch()
    finish(notifier)
    assert out.read_text().split() == ["0", "103", "104", "105"]
