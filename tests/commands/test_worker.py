"""Several machines on one study on the command line: two nodes of this host, as a cluster for tests has them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import Terminated
from autotune.study.record import StudyRecord
from autotune.study.storage.journal import JournalFolder
from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CommandLine, Done, project_in, toy
from tests.commands.conftest import config_of_many

STORAGE = ("--config", "config.yaml", "--storage", "journal:shared")


def on(node: str, autotune: CommandLine, *arguments: str) -> Done:
    """Run a command as on the node of that name, with a state folder of its own."""
    return autotune(*arguments, *STORAGE, "--state-dir", node, env={"SLURMD_NODENAME": node})


def the_study(project: Path) -> StudyRecord:
    """Return the study, to be read."""
    (journal,) = (project / "shared").glob("*.journal")
    study = StudyRecord(journal.stem, JournalFolder(journal.parent), reads_only=True)
    study.refresh()
    return study


class Acting:
    """The toy trainer, of which one trial does something before it begins.

    Args:
        trial: Number of that trial, from 0.

    Attributes:
        act: What it does; it may raise what is to interrupt the command.
    """

    def __init__(self, trial: int = 0) -> None:
        self._left = trial
        self.act: Callable[[], object] = lambda: None

    def __call__(self, config: Mapping[str, Any]) -> Training:
        self._left -= 1
        if self._left == -1:
            self.act()
        return toy(config)


def test_a_worker_with_other_code_does_not_join(tmp_path: Path) -> None:
    """It says what differs and ends, and the search goes on without it."""
    trainer, said = Acting(), list[Done]()
    here, there = project_in(tmp_path / "here", trainer), project_in(tmp_path / "there")
    (here.folder / "shared").mkdir()
    (there.folder / "shared").symlink_to(here.folder / "shared")
    (there.folder / "train.py").write_text("CHANGED = True\n")
    there.simulator = SimulatedRunner(here.clock, lambda _config: Training())
    trainer.act = lambda: said.append(on("two", there, "worker"))
    on("one", here, "search", "--budget", "2m").well()
    assert said[0].returncode == 1
    assert "with other code: train.py is not the same there" in said[0].stderr
    assert [one.role for one in the_study(here.folder).members.on_record()] == ["search"]


def test_a_worker_alone_makes_a_study(simulated: CommandLine) -> None:
    """Where nobody searches, workers do; without a terminal there is a line for each trial."""
    done = on("one", simulated, "worker", "--budget", "1m").well()
    made = len(the_study(simulated.folder).records())
    assert "No search is running on this study: for at most 1m, this worker explores and confirms" in done.stderr
    assert f"Ran {made} trials; the study needs no more trials." in done.stderr
    assert done.stderr.count("/s ") >= made


def test_a_study_that_has_its_answer_needs_no_worker(recorded: CommandLine) -> None:
    """It says so, and makes no trial."""
    done = recorded("worker", "--config", "config.yaml").well()
    assert "The study has an answer" in done.stderr
    assert recorded.simulator.plans == []


def test_a_second_worker_of_a_machine_is_told_of_the_first(tmp_path: Path) -> None:
    """It ends at once, and names the process of the other one, which may have no terminal."""
    trainer, said = Acting(), list[Done]()
    autotune = project_in(tmp_path, trainer)
    trainer.act = lambda: said.append(on("one", autotune, "worker"))
    assert on("one", autotune, "worker", "--budget", "1m").returncode == 0
    assert said[0].returncode == 1
    assert "another search or worker on this machine" in said[0].stderr
    assert f"(process {os.getpid()})" in said[0].stderr


def test_a_worker_that_is_told_to_end_gives_its_trial_back(tmp_path: Path) -> None:
    """The trial is no one's any more, the member has left, and nothing that was measured is lost."""

    def terminated() -> None:
        raise Terminated

    trainer = Acting(2)
    trainer.act = terminated
    autotune = project_in(tmp_path, trainer)
    done = on("one", autotune, "worker", "--budget", "5m")
    assert done.returncode == 143
    assert "2 finished trials are kept; the same command resumes." in done.stderr
    study = the_study(autotune.folder)
    assert list(study.members.trials_elsewhere) == []
    assert [one.has_left for one in study.members.on_record()] == [True]
    assert len(study.records()) == 2


def start(project: Path, node: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command as on the node of that name, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments, *STORAGE, "--state-dir", node],
        cwd=project,
        env={**os.environ, "SLURMD_NODENAME": node},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: "subprocess.Popen[str]", text: str) -> str:
    """Return the line of stderr with that text."""
    assert process.stderr is not None
    return next(line for line in process.stderr if text in line)


@pytest.mark.services
def test_a_worker_goes_on_where_its_search_was_killed(project: Path) -> None:
    """It sees that nothing is heard of the search, says so, and makes trials of its own; no trial was made twice."""
    (project / "config.yaml").write_text(config_of_many())
    with start(project, "one", "search", "--budget", "10m", "--json") as search:
        wait_for(search, "] trial ")
        with start(project, "two", "worker", "--budget", "90s") as worker:
            wait_for(worker, "Joined the search running on")
            wait_for(worker, "] trial ")
            search.kill()
            search.communicate(timeout=30)
            said = wait_for(worker, "(search) has left")
            wait_for(worker, "] trial ")
            worker.communicate(timeout=150)
    assert "no heartbeat; this worker continues alone" in said
    assert worker.returncode == 0
    records = the_study(project).records()
    assert len({trial.machine for trial in records}) == 2
    assert len({trial.search for trial in records}) == 1
    explored = [trial.point for trial in records if trial.purpose == "explore"]
    assert len(explored) == len(set(explored))
