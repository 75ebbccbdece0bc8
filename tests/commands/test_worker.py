"""Several machines on one study on the command line: two nodes of this host, as a cluster for tests has them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.study.record import Study
from autotune.study.storage.journal import JournalFolder
from tests.commands.conftest import TRAINER, Autotune, config_of_many
from tests.report.html.validity import checked, part

STORAGE = ("--storage", "journal:shared")


def start(
    project: Path, node: str, *arguments: str, program: tuple[str, ...] = ("-m", "autotune")
) -> "subprocess.Popen[str]":
    """Start a command as on the node of that name, with a state folder of its own."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments, "--config", "config.yaml", *STORAGE, "--state-dir", node],
        cwd=project,
        env={**os.environ, "SLURMD_NODENAME": node},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def the_study(project: Path) -> Study:
    """Return the study, to be read."""
    (journal,) = (project / "shared").glob("*.journal")
    return Study(journal.stem, JournalFolder(journal.parent), reads_only=True)


def wait_for(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """Return the lines of stderr up to one with that text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_worker_takes_part_in_a_search_and_leaves_with_it(project: Path, autotune: Autotune) -> None:
    """Both machines' trials make one search, none is made twice, and the answer is the search's."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("[4, 16, 64]", "[4, 8, 16, 32, 48, 64]"))
    with start(project, "one", "search", "--budget", "40s", "--json") as search:
        wait_for(search, "trial ")
        with start(project, "two", "worker") as worker:
            _, said = worker.communicate(timeout=120)
        answer, errors = search.communicate(timeout=120)
    assert search.returncode == 0, errors
    assert worker.returncode == 0, said
    host, machines = socket.gethostname(), {trial.machine for trial in the_study(project).records()}
    joined = next(line for line in said.splitlines() if "Joined the search that goes on on" in line)
    assert any(f"{host} ({machine});" in joined for machine in machines)
    assert "No search is at work" not in said
    assert "outside its folder" not in said + errors
    study = the_study(project)
    records = study.records()
    assert len({trial.machine for trial in records}) == 2
    assert len({trial.search for trial in records}) == 1
    assert json.loads(answer)["trials"] == len(records)
    explored = [trial.point for trial in records if trial.purpose == "explore"]
    assert len(explored) == len(set(explored))
    assert [one.has_left for one in study.members()] == [True, True]
    status = autotune("status", "--config", "config.yaml", *STORAGE, "--json")
    assert json.loads(status.stdout)["trials"] == len(records)
    written = autotune("report", "--config", "config.yaml", *STORAGE, "-o", "report.html")
    assert written.returncode == 0, written.stderr
    page = checked(project / "report.html")
    assert "Made on 2 machines" in part(page, "trials")
    assert all(f"{host} ({machine})" in part(page, "trials") for machine in machines)
    assert all(f"{host} ({machine})" in part(page, "conditions") for machine in machines)


@pytest.mark.services
def test_a_worker_goes_on_where_its_search_was_killed(project: Path) -> None:
    """It sees that nothing is heard of the search, says so, and makes trials of its own until its budget ends."""
    (project / "config.yaml").write_text(config_of_many())
    with start(project, "one", "search", "--budget", "10m", "--json") as search:
        wait_for(search, "] trial ")
        with start(project, "two", "worker", "--budget", "90s") as worker:
            wait_for(worker, "] trial ")
            search.kill()
            search.communicate(timeout=30)
            said = wait_for(worker, "(search) has left")[-1]
            wait_for(worker, "] trial ")
            worker.communicate(timeout=150)
    assert "it gives no sign of life; this worker goes on by itself" in said
    assert worker.returncode == 0


def test_a_worker_with_other_code_does_not_join(project: Path) -> None:
    """It says what differs and ends, and the search goes on without it."""
    trainer = TRAINER.read_text()
    (project / "train.py").write_text(trainer)
    config = (project / "config.yaml").read_text().replace(str(TRAINER), "train.py")
    (project / "config.yaml").write_text(config)
    (project / "shared").mkdir()
    other = project.with_name("the same project on another machine")
    other.mkdir()
    (other / "config.yaml").write_text(config)
    (other / "train.py").write_text(f"{trainer}\nCHANGED = True\n")
    (other / "shared").symlink_to(project / "shared")
    with start(project, "one", "search", "--budget", "10m", "--json") as search:
        wait_for(search, "trial ")
        with start(other, "two", "worker") as worker:
            _, said = worker.communicate(timeout=60)
        assert search.poll() is None
        search.send_signal(signal.SIGINT)
        search.communicate(timeout=60)
    assert worker.returncode == 1
    assert "with other code: train.py is not the same there" in said
    assert [one.role for one in the_study(project).members()] == ["search"]


def test_a_worker_alone_makes_a_study(project: Path) -> None:
    """Where nobody searches, workers do; without a terminal there is a line for each trial."""
    with start(project, "one", "worker", "--budget", "50s") as worker:
        _, said = worker.communicate(timeout=120)
    assert worker.returncode == 0, said
    made = len(the_study(project).records())
    with start(project, "two", "worker") as late:
        _, told = late.communicate(timeout=120)
    assert late.returncode == 0
    assert "The study has its answer" in told
    assert len(the_study(project).records()) == made
    assert "No search is at work on this study: for at most 50s this worker tries and confirms by itself." in said
    assert f"{made} trials made; the study needs no more of it." in said
    assert said.count("/s ") >= made


def test_a_second_worker_of_a_machine_is_told_of_the_first(project: Path) -> None:
    """It ends at once, and says how to end the other one, which may have no terminal."""
    with start(project, "one", "worker", "--budget", "60s") as worker:
        wait_for(worker, "trial 0")
        with start(project, "one", "worker") as second:
            _, said = second.communicate(timeout=60)
        worker.terminate()
        worker.communicate(timeout=30)
    assert second.returncode == 1
    assert "another search or worker of this machine" in said
    assert f"or with kill {worker.pid}" in said


def test_a_worker_that_is_told_to_end_gives_its_trial_back(project: Path) -> None:
    """The trial is no one's any more, the member has left, and nothing that was measured is lost."""
    with start(project, "one", "worker", "--budget", "60s") as worker:
        wait_for(worker, "trial 0")
        clock = SystemClock()
        told_s = clock.now_s()
        worker.terminate()
        _, said = worker.communicate(timeout=30)
    assert worker.returncode == 128 + signal.SIGTERM
    assert re.search(r"finished trial(s are| is) kept; the same command goes on\.", said)
    assert clock.now_s() - told_s < 20.0
    study = the_study(project)
    study.refresh()
    assert list(study.trials_elsewhere()) == []
    assert [one.has_left for one in study.members()] == [True]
    assert study.records()
