"""A trainer with an output folder of its own in its code, in a project where real training has left its checkpoints."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import TRAINER, Autotune, start_search

SEARCH = ("search", "--config", "config.yaml", "--budget", "60s")
TWO_WEEKS = b"the weights of two weeks"


@pytest.fixture
def checkpoint(project: Path) -> Path:
    """The checkpoint of real training, where the trainer will write whatever its config says."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: writes checkpoints\nout:"))
    path = project / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    path.write_bytes(TWO_WEEKS)
    return path


def put_back(said: str) -> None:
    """Does what the message says, in a shell as its reader would."""
    (line,) = (line for line in said.splitlines() if line.startswith("As they were, put back by:"))
    subprocess.run(line.partition("put back by:")[2], shell=True, check=True)


def goes_on(project: Path) -> None:
    """Searches until a second run is over, which nothing but ^C ends."""
    with start_search(project, 90) as search:
        assert search.stderr is not None
        said = []
        for line in search.stderr:
            said.append(line)
            if "] run " in line and sum("] run " in line for line in said) == 2:
                search.send_signal(signal.SIGINT)
        assert search.wait(timeout=60) == 130, "".join(said)


def test_a_checkpoint_that_is_written_over_ends_the_search_and_can_be_put_back(
    project: Path, checkpoint: Path, autotune: Autotune
) -> None:
    """After that one run, with its name and the line that brings it back."""
    done = autotune(*SEARCH)
    assert done.returncode == 1
    assert "while run 0 went on, outside its folder: changed or gone: checkpoints/last.ckpt" in done.stderr
    assert "redirect:" in done.stderr
    assert len(list(project.glob(".autotune/runs/*/*"))) == 1
    assert checkpoint.read_bytes() != TWO_WEEKS
    put_back(done.stderr)
    assert checkpoint.read_bytes() == TWO_WEEKS


def test_moved_away_they_are_safe_and_what_runs_leave_is_nobodys(project: Path, checkpoint: Path) -> None:
    """The search goes on, and so does the next one, which finds what the first has left."""
    away = project / "safe"
    away.mkdir()
    checkpoint.rename(away / "last.ckpt")
    for _ in range(2):
        goes_on(project)
    assert checkpoint.exists()
    assert (away / "last.ckpt").read_bytes() == TWO_WEEKS
    assert list(project.glob(".autotune/kept/*")) == []


def test_the_proof_of_init_stops_there_too(project: Path, checkpoint: Path, autotune: Autotune) -> None:
    """Before anything is written."""
    config = project / "config.yaml"
    config.write_text(config.read_text().partition("autotune:")[0])
    before = config.read_text()
    done = autotune("init", "--config", "config.yaml", "--yes", "--", sys.executable, str(TRAINER), "config.yaml")
    assert done.returncode == 1
    assert "while the proof went on, outside its folder: changed or gone: checkpoints/last.ckpt" in done.stderr
    assert config.read_text() == before
    put_back(done.stderr)
    assert checkpoint.read_bytes() == TWO_WEEKS


def test_what_the_proof_leaves_is_no_users_checkpoint(project: Path, checkpoint: Path, autotune: Autotune) -> None:
    """The search after it writes over that, and goes on."""
    checkpoint.unlink()
    config = project / "config.yaml"
    section = config.read_text()
    config.write_text(config.read_text().partition("autotune:")[0])
    done = autotune("init", "--config", "config.yaml", "--yes", "--", sys.executable, str(TRAINER), "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "while the proof went on, outside its folder: new: checkpoints/last.ckpt" in done.stderr
    config.write_text(section)
    goes_on(project)
