"""The queue as its user has it; with a real daemon where that is what has to answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands import queue
from autotune.daemon.advice import Recommendations
from autotune.daemon.home import locate_home
from autotune.errors import AutotuneError
from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CommandLine
from tests.commands.conftest import Autotune, left_running
from tests.daemon.advised import advice
from tests.until import until

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
        until(lambda: autotune("daemon", "status").returncode == 0, daemons[-1].said)
        return daemons[-1]

    yield run
    for daemon in daemons:
        daemon.process.kill()
        daemon.process.wait()


def entries(autotune: Autotune | CommandLine) -> list[dict[str, Any]]:
    """Return the entries that `queue list --json` shows."""
    found = json.loads(autotune("queue", "list", "--json").stdout)["entries"]
    assert isinstance(found, list)
    return found


def add(autotune: Autotune | CommandLine, *arguments: str) -> dict[str, Any]:
    """Add the project's config."""
    done = autotune("queue", "add", "--config", "config.yaml", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["entry"]
    assert isinstance(entry, dict)
    return entry


def states(autotune: Autotune | CommandLine) -> list[str]:
    """Return the states of all entries."""
    return [entry["state"] for entry in entries(autotune)]


def test_a_daemon_says_what_is_waited_for_and_is_the_only_one(autotune: Autotune, start: Callable[[], Daemon]) -> None:
    """Nothing starts before the machine is idle for ten minutes; a second daemon is refused, and the first goes on."""
    first = start()
    add(autotune, "--no-check")
    until(lambda: (entries(autotune)[0]["reason"] or "").startswith("waits for an idle machine: "), "no reason")
    assert states(autotune) == ["waiting"]
    second = autotune("daemon", "run")
    assert second.returncode == 1
    assert f"process {first.process.pid}" in second.stderr
    assert autotune("queue", "pause", "1").returncode == 0
    assert states(autotune) == ["paused"]
    assert autotune("daemon", "status").returncode == 0
    assert first.end() == 143


@pytest.mark.usefixtures("home")
def test_what_cannot_work_is_refused_at_once(simulated: CommandLine) -> None:
    """`queue add` refuses what would fail at night: a config twice, wrong words, a trainer that does not start."""
    add(simulated)
    assert "as 1" in simulated("queue", "add", "--config", "config.yaml").refusal()
    assert simulated("queue", "remove", "7").returncode == 1
    simulated("queue", "remove", "1")
    for wrong in (["--when", "later"], ["--apply", "all"], ["--apply", "batch"], ["--budget", "0"]):
        assert simulated("queue", "add", "--config", "config.yaml", *wrong).returncode == 2
    assert simulated("queue", "add", "--config", "missing.yaml").returncode == 1
    assert "is too short" in simulated("queue", "add", "--config", "config.yaml", "--budget", "1s").refusal()
    crashes = Training(steps=0, exit_code=1, stderr="ValueError: there is no such layer\n")
    simulated.simulator = SimulatedRunner(simulated.clock, lambda _config: crashes)
    assert "there is no such layer" in simulated("queue", "add", "--config", "config.yaml").refusal()
    assert entries(simulated) == []


@pytest.mark.usefixtures("home")
def test_without_a_daemon_it_is_said(simulated: CommandLine) -> None:
    """Entries can be added, and whoever waits for them is told that nobody works on them."""
    added = simulated("queue", "add", "--config", "config.yaml", "--no-check").well()
    assert "no daemon is running" in added.stdout
    assert "no daemon is running" in simulated("queue", "list").stdout
    assert "daemon run" in simulated("queue", "wait").refusal()
    assert simulated("daemon", "status").returncode == 1


@pytest.mark.usefixtures("home")
def test_a_daemon_that_hangs_hides_nothing(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue can be seen and changed; what was changed is said to be, though the daemon has not followed."""

    def hangs(*_: object, **_options: object) -> None:
        raise AutotuneError("the daemon did not answer")

    monkeypatch.setattr(queue, "ask", hangs)
    said = simulated("queue", "add", "--config", "config.yaml", "--no-check").refusal()
    assert "the queue is changed, but the daemon has not applied the change yet: the daemon did not answer" in said
    listed = simulated("queue", "list").well()
    assert "config.yaml" in listed.stdout
    assert "did not answer" in listed.stderr


@pytest.mark.usefixtures("home")
def test_a_variable_that_is_not_kept_and_may_be_needed_is_named(simulated: CommandLine) -> None:
    """Where the config or the script names it; not one that nothing names, nor one that is kept."""
    config = simulated.folder / "config.yaml"
    config.write_text(f"# the data lie in MY_CORPUS\n{config.read_text()}")
    add_it, variables = ("queue", "add", "--config", "config.yaml", "--no-check"), {"MY_CORPUS": "/x", "MY_OWN": "y"}
    said = simulated(*add_it, env=variables).stderr
    assert "trainer's script: MY_CORPUS." in said
    assert "MY_OWN" not in said
    assert simulated("queue", "remove", "1").returncode == 0
    assert "MY_CORPUS" not in simulated(*add_it, "--keep-env", "MY_CORPUS", env=variables).stderr


def test_a_long_line_of_a_log_is_shown_in_pieces(simulated: CommandLine, home: Path) -> None:
    """All of it, in order, and the line behind it that does not end yet."""
    add(simulated, "--no-check")
    (file,) = home.rglob("queue.json")
    (entry,) = json.loads(file.read_text())["entries"]
    long = "".join(map(str, range(100_000)))
    file.with_name(f"{entry['id']}.log").write_text(f"{long}\nlast")
    *pieces, last = simulated("queue", "log", "1").stdout.splitlines()
    assert ("".join(pieces), last) == (long, "last")


@pytest.mark.usefixtures("home")
def test_an_advice_is_explained(simulated: CommandLine) -> None:
    """The gain with its interval, what each change is worth, and how to take it."""
    recommendations = Recommendations(locate_home(os.environ).advice)
    recommendations.keep(advice())
    explained = simulated("daemon", "explain", advice().id).stdout
    assert "1.50x as fast as the config was (95 % interval 1.20-1.80)" in explained
    assert "data.num_workers: 1 -> 4  1.40x (1.10-1.70)  (same training)" in explained
    assert "To apply: autotune apply --config /project/1.yaml" in explained
    recommendations.mark_applied(advice().id, "2030-01-01T01:00:00+00:00")
    assert "To undo: autotune revert" in simulated("daemon", "explain", advice().id).stdout


def test_what_was_reverted_is_not_shown_as_applied(simulated: CommandLine, home: Path) -> None:
    """An entry, and its advice, once the config is again what was searched."""
    add(simulated, "--no-check")
    config = simulated.folder / "config.yaml"
    searched = config.read_text()
    (file,) = home.rglob("queue.json")
    document = json.loads(file.read_text())
    (entry,) = document["entries"]
    path = entry["config"]
    entry |= {"state": "done", "note": f"applied to {path}; `autotune revert` undoes it"}
    file.write_text(json.dumps(document))
    recommendations = Recommendations(locate_home(os.environ).advice)
    kept = replace(advice(), config=path, config_sha256=entry["fingerprint"]["config_sha256"])
    recommendations.keep(kept)
    recommendations.mark_applied(kept.id, "2030-01-01T01:00:00+00:00")
    config.write_text(searched + "# values were written\n")
    assert "`autotune revert` undoes it" in simulated("queue", "list").stdout
    assert "To undo: autotune revert" in simulated("daemon", "explain", kept.id).stdout
    config.write_text(searched)
    assert f"applied to {path}, and reverted since" in simulated("queue", "list").stdout
    assert "To apply: autotune apply" in simulated("daemon", "explain", kept.id).stdout


@pytest.mark.services
def test_pausing_ends_the_search_and_resuming_goes_on(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """`queue pause` returns when nothing runs any more; the rest of the budget stays; `remove` leaves nothing.

    The search of a killed daemon ends by itself after its running trial; the next daemon goes on with the budget.
    """
    first = start()
    add(autotune, "--when", "now", "--budget", "10m", "--no-check")
    until(lambda: bool(list(project.glob(".autotune/trials/*/*"))), "no trial began")
    assert autotune("queue", "pause", "1").returncode == 0
    assert not left_running(project)
    (entry,) = entries(autotune)
    assert entry["state"] == "paused"
    assert 0 < entry["used_s"] < entry["budget_s"]
    assert autotune("queue", "resume", "1").returncode == 0
    until(lambda: states(autotune) == ["running"], first.said)
    first.end(signal.SIGKILL)
    until(lambda: not left_running(project), "the search did not end by itself")
    assert states(autotune) == ["running"]
    second = start()
    until(lambda: bool(left_running(project)), second.said)
    assert autotune("queue", "remove", "1").returncode == 0
    assert not left_running(project)
    assert entries(autotune) == []


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


@pytest.mark.usefixtures("home")
def test_what_changes_a_queue_says_it_as_an_object(simulated: CommandLine) -> None:
    """``pause``, ``resume`` and ``remove`` with ``--json``, each with the entry as it is then."""
    number = str(add(simulated, "--budget", "60s", "--no-check")["number"])
    for verb in ("pause", "resume", "remove"):
        done = simulated("queue", verb, number, "--json").well()
        assert number in str(done.document)
