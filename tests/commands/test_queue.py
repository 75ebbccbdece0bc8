"""The queue and its daemon as their user has them: real commands, a real daemon, real searches of a toy trainer."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commands.conftest import Autotune
from tests.commands.test_search import left_running

LIMIT_S = 120.0


class Daemon:
    """A daemon that runs in a test.

    Args:
        environ: Its environment.
        folder: Where it is started, and its log is written.
        options: Options of `daemon run`.
    """

    def __init__(self, environ: dict[str, str], folder: Path, *options: str) -> None:
        self.log = folder / "daemon.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune", "daemon", "run", *options],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        """Return all that it has said."""
        return self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a daemon's state, for all commands of the test."""
    folder = tmp_path / "daemon's home"
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return folder


@pytest.fixture
def start(home: Path, tmp_path: Path, autotune: Autotune) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons, with options, which answer from then on, and end with the test."""
    daemons: list[Daemon] = []

    def run(*options: str) -> Daemon:
        daemons.append(Daemon(dict(os.environ), tmp_path, *options))
        until(lambda: autotune("daemon", "status").returncode == 0, daemons[-1].said())
        return daemons[-1]

    yield run
    for daemon in daemons:
        daemon.process.kill()
        daemon.process.wait()


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true."""
    over_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < over_s, what
        time.sleep(0.05)


def entries(autotune: Autotune) -> list[dict[str, Any]]:
    """Return the entries that `queue list --json` shows."""
    found = json.loads(autotune("queue", "list", "--json").stdout)["entries"]
    assert isinstance(found, list)
    return found


def add(autotune: Autotune, *arguments: str) -> dict[str, Any]:
    """Add the project's config."""
    done = autotune("queue", "add", "--config", "config.yaml", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["entry"]
    assert isinstance(entry, dict)
    return entry


def states(autotune: Autotune) -> list[str]:
    """Return the states of all entries."""
    return [entry["state"] for entry in entries(autotune)]


def test_a_queued_search_is_made_applied_and_explained(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """From `queue add` to the tuned config: the search runs, the advice says why, the values are in the file."""
    daemon = start()
    add(autotune, "--when", "now", "--budget", "40s", "--apply", "better")
    done = autotune("queue", "wait", "--for", "100s")
    assert done.returncode == 0, done.stderr + daemon.said()
    (entry,) = entries(autotune)
    assert entry["state"] == "done", daemon.said()
    assert entry["answer"]["verdict"] == "better"
    assert "num_workers: 2   # loaders" in (project / "config.yaml").read_text()
    explained = autotune("daemon", "explain", entry["answer"]["advice"])
    assert "data.num_workers: 1 -> 2" in explained.stdout
    assert "applied" in explained.stdout
    assert "baseline" in autotune("queue", "log", "1").stdout
    assert daemon.end() == 143
    assert not left_running(project)


def test_pausing_ends_the_search_and_resuming_goes_on(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """`queue pause` returns when nothing runs any more; the rest of the budget stays; `remove` leaves nothing."""
    daemon = start()
    add(autotune, "--when", "now", "--budget", "10m", "--no-check")
    until(lambda: bool(list(project.glob(".autotune/trials/*/*"))), "no trial began")
    assert autotune("queue", "pause", "1").returncode == 0
    assert not left_running(project)
    (entry,) = entries(autotune)
    assert entry["state"] == "paused"
    assert 0 < entry["used_s"] < 300
    assert autotune("queue", "resume", "1").returncode == 0
    until(lambda: states(autotune) == ["running"], daemon.said())
    assert autotune("queue", "remove", "1").returncode == 0
    assert not left_running(project)
    assert entries(autotune) == []


def test_a_killed_daemon_loses_nothing(project: Path, autotune: Autotune, start: Callable[[], Daemon]) -> None:
    """The search ends by itself after its running trial, and the next daemon goes on with the rest of the budget."""
    first = start()
    add(autotune, "--when", "now", "--budget", "20s", "--no-check")
    until(lambda: bool(list(project.glob(".autotune/trials/*/*/result.json"))), "no trial was finished")
    first.end(signal.SIGKILL)
    until(lambda: not left_running(project), "the search did not end by itself")
    assert states(autotune) == ["running"]
    second = start()
    done = autotune("queue", "wait", "--for", "100s")
    assert done.returncode == 0, done.stderr + second.said()
    (entry,) = entries(autotune)
    assert (entry["state"], entry["number"]) == ("done", 1), second.said()
    assert entry["used_s"] <= 20


def test_a_second_daemon_is_refused(autotune: Autotune, start: Callable[[], Daemon]) -> None:
    """There is one daemon for each user and machine; the first goes on."""
    first = start()
    second = autotune("daemon", "run")
    assert second.returncode == 1
    assert f"process {first.process.pid}" in second.stderr
    assert autotune("daemon", "status").returncode == 0


def test_a_machine_in_use_is_waited_for(autotune: Autotune, start: Callable[[], Daemon]) -> None:
    """An entry says what it waits for; nothing starts before the machine has been idle for ten minutes."""
    start()
    add(autotune, "--no-check")
    until(lambda: (entries(autotune)[0]["reason"] or "").startswith("waits for an idle machine: "), "no reason")
    assert states(autotune) == ["waiting"]


def test_what_cannot_work_is_refused_at_once(project: Path, autotune: Autotune, home: Path) -> None:
    """`queue add` refuses what would fail at night: a config twice, wrong words, a trainer that does not start."""
    add(autotune, "--no-check")
    twice = autotune("queue", "add", "--config", "config.yaml", "--no-check")
    assert twice.returncode == 1
    assert "as 1" in twice.stderr
    assert autotune("queue", "remove", "7").returncode == 1
    autotune("queue", "remove", "1")
    for wrong in (["--when", "later"], ["--apply", "all"], ["--apply", "batch"], ["--budget", "0"]):
        assert autotune("queue", "add", "--config", "config.yaml", *wrong).returncode == 2
    assert autotune("queue", "add", "--config", "missing.yaml").returncode == 1
    small = autotune("queue", "add", "--config", "config.yaml", "--budget", "1s")
    assert small.returncode == 1
    assert "cannot fit" in small.stderr
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: crashes\nout:"))
    crashing = autotune("queue", "add", "--config", "config.yaml")
    assert crashing.returncode == 1
    assert "there is no such layer" in crashing.stderr
    assert entries(autotune) == []


def test_without_a_daemon_it_is_said(autotune: Autotune, home: Path) -> None:
    """Entries can be added, and whoever waits for them is told that nobody works on them."""
    added = autotune("queue", "add", "--config", "config.yaml", "--no-check")
    assert added.returncode == 0
    assert "no daemon runs" in added.stdout
    assert "no daemon runs" in autotune("queue", "list").stdout
    waiting = autotune("queue", "wait")
    assert waiting.returncode == 1
    assert "daemon run" in waiting.stderr
    assert autotune("daemon", "status").returncode == 1


@pytest.mark.usefixtures("home")
def test_a_variable_that_is_not_kept_and_may_be_needed_is_named(project: Path, autotune: Autotune) -> None:
    """Where the config or the script names it; not one that nothing names, nor one that is kept."""
    config = project / "config.yaml"
    config.write_text(f"# the data lie in MY_CORPUS\n{config.read_text()}")
    add_it, variables = ("queue", "add", "--config", "config.yaml", "--no-check"), {"MY_CORPUS": "/x", "MY_OWN": "y"}
    said = autotune(*add_it, env=variables).stderr
    assert "names it: MY_CORPUS." in said
    assert "MY_OWN" not in said
    assert autotune("queue", "remove", "1").returncode == 0
    assert "MY_CORPUS" not in autotune(*add_it, "--keep-env", "MY_CORPUS", env=variables).stderr


@pytest.mark.services
def test_a_daemon_that_hangs_hides_nothing(autotune: Autotune, start: Callable[[], Daemon]) -> None:
    """The queue can be seen and changed; what was changed is said to be, though the daemon has not followed."""
    daemon = start()
    daemon.process.send_signal(signal.SIGSTOP)
    added = autotune("queue", "add", "--config", "config.yaml", "--no-check")
    assert added.returncode == 1
    assert "the queue is changed, but" in added.stderr
    listed = autotune("queue", "list")
    assert listed.returncode == 0
    assert "config.yaml" in listed.stdout
    assert "did not answer" in listed.stderr
    daemon.process.send_signal(signal.SIGCONT)
    assert autotune("queue", "remove", "1").returncode == 0


@pytest.mark.services
def test_a_value_that_was_taken_back_by_hand_stands(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """The same advice is not applied over it until `queue resume` says so; a training is waited for even then."""
    config = project / "config.yaml"
    before = config.read_text()
    daemon = start()
    options = ("--when", "now", "--budget", "40s", "--apply", "better", "--no-check")
    add(autotune, *options)
    assert autotune("queue", "wait", "--for", "100s").returncode == 0, daemon.said()
    assert "num_workers: 2   # loaders" in config.read_text()
    config.write_text(before)
    add(autotune, *options)
    assert autotune("queue", "wait", "2", "--for", "100s").returncode == 0, daemon.said()
    assert [(one["state"], one["hold"]) for one in entries(autotune)] == [("done", None), ("held", "edited")]
    assert config.read_text() == before
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "--config", "config.yaml"], cwd=project, stdin=subprocess.PIPE
    ) as training:
        assert autotune("queue", "resume", "2").returncode == 0
        assert config.read_text() == before, daemon.said()
        training.kill()
    assert autotune("queue", "resume", "2").returncode == 0
    assert "num_workers: 2   # loaders" in config.read_text(), daemon.said()
    assert states(autotune) == ["done", "done"]


def test_a_training_holds_up_what_would_be_applied(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """While a process uses the config nothing is written into it; once that has ended it is."""
    before = (project / "config.yaml").read_text()
    daemon = start()
    command = [sys.executable, "-c", "input()", "--config", "config.yaml"]
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE) as training:
        add(autotune, "--when", "now", "--budget", "40s", "--apply", "better", "--no-check")
        assert autotune("queue", "wait", "--for", "100s").returncode == 0, daemon.said()
        (entry,) = entries(autotune)
        assert (entry["state"], entry["hold"]) == ("held", "training"), daemon.said()
        assert (project / "config.yaml").read_text() == before
        with contextlib.suppress(psutil.Error):
            training.kill()
    assert autotune("queue", "resume", "1").returncode == 0
    until(lambda: states(autotune) == ["done"], daemon.said())
    assert "num_workers: 2   # loaders" in (project / "config.yaml").read_text()


def test_a_long_line_of_a_log_is_shown_in_pieces(autotune: Autotune, home: Path) -> None:
    """All of it, in order, and the line behind it that does not end yet."""
    add(autotune)
    (file,) = home.rglob("queue.json")
    (entry,) = json.loads(file.read_text())["entries"]
    long = "".join(map(str, range(100_000)))
    file.with_name(f"{entry['id']}.log").write_text(f"{long}\nlast")
    *pieces, last = autotune("queue", "log", "1").stdout.splitlines()
    assert ("".join(pieces), last) == (long, "last")
