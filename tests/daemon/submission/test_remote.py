"""Workers over ssh, with a real server and several names for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
import pytest

from autotune.clock import SystemClock
from autotune.commands.worker_submission import submit_workers
from autotune.errors import CommandError, ConfigError
from tests.daemon.submission.conftest import STAND_IN, Request
from tests.sshd import HOSTS, running_sshd
from tests.until import until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ssh() -> Iterator[str]:
    """Run an ssh server; yield the PATH of its clients."""
    with running_sshd() as path:
        yield path


def start(project: Path, path: str, *words: str) -> "subprocess.Popen[str]":
    """Start a submission in a project, as typed."""
    options = ("--config", "my config.yaml", "--seed", "3", "--reachable", "--submit", "ssh")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.daemon.submission.typed", *options, *words],
        cwd=project,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def change(project: Path, line: str) -> None:
    """Tell the stand-ins what to do."""
    config = project / "my config.yaml"
    config.write_text(f"{line}\n{config.read_text()}")


def begun(submission: "subprocess.Popen[str]", count: int) -> tuple[str, list[int]]:
    """Read the output until so many workers have begun; return it, and their process ids."""
    assert submission.stderr is not None
    said, pids = "", []
    while len(pids) < count:
        line = submission.stderr.readline()
        assert line, said
        said += line
        if '"pid"' in line:
            pids.append(json.loads(line.partition(": ")[2])["pid"])
    return said, pids


@pytest.mark.services
def test_each_host_has_one_worker_in_the_same_folder(project: Path, ssh: str) -> None:
    """What they print is marked with their host; they have the same options and different seeds."""
    with start(project, ssh, *HOSTS) as submission:
        out, said = submission.communicate(timeout=60)
    assert (submission.returncode, out) == (0, ""), said
    lines = {line.partition(": ")[0]: line.partition(": ")[2] for line in said.splitlines() if '"words"' in line}
    started = {host: json.loads(lines[host]) for host in HOSTS}
    assert [one["cwd"] for one in started.values()] == [str(project)] * 2
    words = started[HOSTS[0]]["words"]
    journals = f"journal:{project}/.autotune/studies"
    assert words == ["worker", "--config", "my config.yaml", "--storage", journals, "--seed", "3"]
    assert started[HOSTS[1]]["words"] == [*words[:-1], "4"]
    assert all(f"{host}: left, nothing more to do" in said for host in HOSTS)


@pytest.mark.services
def test_an_interrupt_tells_all_workers_to_leave(project: Path, ssh: str) -> None:
    """Each gets SIGTERM, says what it has to say, and is gone before the command ends."""
    change(project, "waits: true")
    with start(project, ssh, *HOSTS) as submission:
        before, pids = begun(submission, 2)
        submission.send_signal(signal.SIGINT)
        said = before + submission.communicate(timeout=60)[1]
    assert submission.returncode == 130, said
    for pid in pids:
        assert f"{pid} gives its trial back" in said
    assert "left with status 143" in said
    until(lambda: not any(map(psutil.pid_exists, pids)), pids)


@pytest.mark.services
def test_workers_end_with_the_connection(project: Path, ssh: str) -> None:
    """The submitting machine may crash: nothing works on for it."""
    change(project, "waits: true")
    with start(project, ssh, *HOSTS) as submission:
        _, pids = begun(submission, 2)
        for child in psutil.Process(submission.pid).children():  # the ssh clients
            child.kill()
        submission.kill()
    until(lambda: not any(map(psutil.pid_exists, pids)), pids)


def test_hosts_that_are_none_are_refused(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of ssh in their place, none at all, one twice, a number of workers."""
    for hosts, why in {
        ("-oProxyCommand=x",): "no name",
        (): "no host",
        ("a", "a"): "twice",
        ("a b",): "no name",
    }.items():
        with pytest.raises(ConfigError, match=why):
            submit_workers(request_of("ssh", *hosts), SystemClock(), program=STAND_IN)
    with pytest.raises(click.UsageError):
        submit_workers(request_of("ssh", "a", count=2), SystemClock(), program=STAND_IN)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError, match="no ssh"):
        submit_workers(request_of("ssh", "a"), SystemClock(), program=STAND_IN)


def test_a_dry_run_starts_nothing(request_of: Request, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a command for each host."""
    assert submit_workers(request_of("ssh", "a", "b", dry_run=True), SystemClock(), program=STAND_IN) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" -- ")[1].split()[0] for line in lines] == ["a", "b"]
    assert not (project / ".autotune").exists()
