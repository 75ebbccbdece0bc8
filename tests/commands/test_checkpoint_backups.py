"""Trainer with an output folder of its own in its code, in a project that holds the checkpoints of real training."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from autotune.trial import checkpoint_backups as checkpoints
from tests.commands.conftest import TRAINER, Autotune, start_search

SEARCH = ("search", "--config", "config.yaml", "--budget", "60s")
TWO_WEEKS = b"the weights of two weeks"


@pytest.fixture
def checkpoint(project: Path) -> Path:
    """Checkpoint of real training, where the trainer will write whatever its config says."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: writes checkpoints\nout:"))
    path = project / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    path.write_bytes(TWO_WEEKS)
    return path


def goes_on(project: Path) -> None:
    """Search until a second trial is over, which nothing but ^C ends."""
    with start_search(project, 90) as search:
        assert search.stderr is not None
        said = []
        for line in search.stderr:
            said.append(line)
            if "] trial " in line and sum("] trial " in line for line in said) == 2:
                search.send_signal(signal.SIGINT)
        assert search.wait(timeout=60) == 130, "".join(said)


def test_a_checkpoint_that_is_written_over_is_put_back_and_the_search_goes_on(
    project: Path, checkpoint: Path, autotune: Autotune
) -> None:
    """The backup comes back with times and mode, in every trial; it is said once, and there is an answer as ever."""
    checkpoint.chmod(0o640)
    os.utime(checkpoint, ns=(1_000_000_007, 1_000_000_008))
    done = autotune("search", "--config", "config.yaml", "--budget", "8s", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["trials"] > 2
    assert answer["baseline"]["metrics"]["samples_per_s"] > 0
    assert "error" not in answer
    assert checkpoint.read_bytes() == TWO_WEEKS
    about = checkpoint.stat()
    assert about.st_mode & 0o777 == 0o640
    assert about.st_mtime_ns == 1_000_000_008
    said = "while trial 0 went on, written over or taken away: checkpoints/last.ckpt; put back from a copy"
    assert done.stderr.count("put back") == 1
    assert said in done.stderr.replace("\n", " ")
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert [path for path in project.glob(".autotune/kept/*") if path.is_dir()] == []


LATER = """\
import sys, time
from pathlib import Path
import yaml
from autotune.trainee import step
values, started = yaml.safe_load(open(sys.argv[1])), Path("started")
started.open("a").write("x")
for number in range(10_000):
    time.sleep(0.02 / values["workers"])
    step(samples=8)
    if number == 5 and len(started.read_text()) > 4:
        Path("model_best.pth.tar").write_text("a few steps")
        Path("scores.txt").write_text("0.1")
"""


def test_what_only_later_trials_write_over_is_put_back_or_named(project: Path, autotune: Autotune) -> None:
    """A best model is put back whenever it was written over; another file is named at the end, in the answer too."""
    (project / "train.py").write_text(LATER)
    section = f"{{command: '{sys.executable} train.py {{config}}', folder: ., knobs: {{workers: [1, 2, 4]}}}}"
    (project / "config.yaml").write_text(f"workers: 1\nautotune: {section}\n")
    (project / "model_best.pth.tar").write_bytes(TWO_WEEKS)
    (project / "scores.txt").write_text("0.9")
    done = autotune("search", "--config", "config.yaml", "--budget", "20s", "--json", "--no-apply")
    assert done.returncode == 0, done.stderr
    assert (project / "model_best.pth.tar").read_bytes() == TWO_WEEKS
    assert "written over or taken away: model_best.pth.tar; put back from a copy" in done.stderr
    (named,) = [said for said in json.loads(done.stdout)["cautions"] if "scores.txt" in said]
    assert "while the later trials went on, outside its folder: changed: scores.txt" in named


def test_a_checkpoint_that_an_interrupted_trial_has_written_over_is_put_back(project: Path, checkpoint: Path) -> None:
    """^C at any moment costs no checkpoint."""
    goes_on(project)
    assert checkpoint.read_bytes() == TWO_WEEKS
    assert [path for path in project.glob(".autotune/kept/*") if path.is_dir()] == []


def test_a_checkpoint_too_large_to_copy_ends_the_search_with_the_answer_so_far(
    project: Path, checkpoint: Path, autotune: Autotune
) -> None:
    """One trial and no more, so that no other file is written over; the object holds what it showed, and the error."""
    with checkpoint.open("r+b") as file:
        file.truncate(checkpoints.MOST_BYTES + 1)
    done = autotune(*SEARCH, "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["trials"] == 1
    assert answer["baseline"]["metrics"]["samples_per_s"] > 0
    assert answer["error"]["kind"] == "trial"
    assert (
        "while trial 0 went on, outside its folder: changed or gone: checkpoints/last.ckpt"
        in answer["error"]["message"]
    )
    assert any("could not go on" in caution for caution in answer["cautions"])
    assert "redirect:" in done.stderr
    assert len(list(project.glob(".autotune/trials/*/*"))) == 1


def test_checkpoints_moved_away_are_safe_and_those_of_trials_are_nobodys(project: Path, checkpoint: Path) -> None:
    """The search goes on, and so does the next one, which finds the files that the first has left."""
    away = project / "safe"
    away.mkdir()
    checkpoint.rename(away / "last.ckpt")
    for _ in range(2):
        goes_on(project)
    assert checkpoint.exists()
    assert (away / "last.ckpt").read_bytes() == TWO_WEEKS
    assert [path for path in project.glob(".autotune/kept/*") if path.is_dir()] == []


def test_a_checkpoint_that_the_preflight_of_init_writes_over_is_put_back(
    project: Path, checkpoint: Path, autotune: Autotune
) -> None:
    """The loss is told, and the section is written."""
    config = project / "config.yaml"
    config.write_text(config.read_text().partition("autotune:")[0])
    done = autotune("init", "--config", "config.yaml", "--yes", "--", sys.executable, str(TRAINER), "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "while the preflight trial went on, written over or taken away: checkpoints/last.ckpt" in done.stderr
    assert "autotune:" in config.read_text()
    assert checkpoint.read_bytes() == TWO_WEEKS
