"""Trainer with an output folder of its own in its code, in a project that holds the checkpoints of real training."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.trial import protection as checkpoints
from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, project_in, toy

SEARCH = ("search", "--config", "config.yaml", "--budget", "30s", "--json", "--no-apply")
TWO_WEEKS = b"the weights of two weeks"


def writes(*_: object) -> None:
    """Write a checkpoint where the trainer always does."""
    Path("checkpoints").mkdir(exist_ok=True)
    Path("checkpoints", "last.ckpt").write_bytes(os.urandom(100))


def overwrites(config: Mapping[str, Any]) -> Training:
    """Train, and write a checkpoint."""
    writes()
    return toy(config)


@pytest.fixture
def commands(tmp_path: Path) -> CommandLine:
    """Project of that trainer."""
    return project_in(tmp_path, overwrites)


@pytest.fixture
def checkpoint(commands: CommandLine) -> Path:
    """Checkpoint of real training."""
    path = commands.folder / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    path.write_bytes(TWO_WEEKS)
    return path


def copies(commands: CommandLine) -> list[Path]:
    """Return the folders of copies that are left."""
    return [path for path in commands.folder.glob(".autotune/kept/*") if path.is_dir()]


def test_a_checkpoint_that_is_written_over_is_put_back_and_the_search_goes_on(
    commands: CommandLine, checkpoint: Path
) -> None:
    """The backup comes back with times and mode, in every trial; it is said once, and there is an answer as ever."""
    checkpoint.chmod(0o640)
    os.utime(checkpoint, ns=(1_000_000_007, 1_000_000_008))
    done = commands(*SEARCH)
    assert done.document["trials"] > 2
    assert done.document["baseline"]["metrics"]["samples_per_s"] > 0
    assert "error" not in done.document
    about = checkpoint.stat()
    assert (checkpoint.read_bytes(), about.st_mode & 0o777, about.st_mtime_ns) == (TWO_WEEKS, 0o640, 1_000_000_008)
    said = "during trial 0, overwritten or removed: checkpoints/last.ckpt; restored from a copy"
    assert done.stderr.count("restored") == 1
    assert said in done.stderr.replace("\n", " ")
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert copies(commands) == []


def test_what_only_later_trials_write_over_is_put_back_or_named(commands: CommandLine) -> None:
    """A best model is put back whenever it was written over; another file is named at the end, in the answer too."""
    model, scores = commands.folder / "model_best.pth.tar", commands.folder / "scores.txt"
    model.write_bytes(TWO_WEEKS)
    scores.write_text("0.9")

    def later(config: Mapping[str, Any]) -> Training:
        if len(commands.simulator.plans) > 4:
            model.write_text("a few steps")
            scores.write_text("0.1")
        return toy(config)

    commands.trainer = later
    done = commands(*SEARCH)
    assert model.read_bytes() == TWO_WEEKS
    assert "overwritten or removed: model_best.pth.tar; restored from a copy" in done.stderr
    (named,) = [said for said in done.document["cautions"] if "scores.txt" in said]
    assert "during the later trials, outside its folder: changed: scores.txt" in named


def test_a_checkpoint_that_an_interrupted_trial_has_written_over_is_put_back(
    commands: CommandLine, checkpoint: Path
) -> None:
    """^C at any moment costs no checkpoint."""

    def interrupted(config: Mapping[str, Any]) -> Training:
        writes()
        if len(commands.simulator.plans) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return toy(config)

    commands.trainer = interrupted
    assert commands.forked(*SEARCH, "--budget", "5m").returncode == 130
    assert checkpoint.read_bytes() == TWO_WEEKS
    assert copies(commands) == []


def test_a_checkpoint_too_large_to_copy_ends_the_search_with_the_answer_so_far(
    commands: CommandLine, checkpoint: Path
) -> None:
    """One trial and no more, so that no other file is written over; the object holds what it showed, and the error."""
    with checkpoint.open("r+b") as file:
        file.truncate(checkpoints.MOST_BYTES + 1)
    done = commands(*SEARCH)
    answer = done.document
    assert (done.returncode, answer["trials"], answer["error"]["kind"]) == (1, 1, "trial")
    assert answer["baseline"]["metrics"]["samples_per_s"] > 0
    changed = "during trial 0, outside its folder: changed or gone: checkpoints/last.ckpt"
    assert changed in answer["error"]["message"]
    assert any("could not continue" in caution for caution in answer["cautions"])
    assert "redirect:" in done.stderr
    assert len(commands.simulator.plans) == 1


def test_a_checkpoint_that_the_preflight_of_init_writes_over_is_put_back(
    commands: CommandLine, checkpoint: Path
) -> None:
    """The loss is told, and the section is written."""
    config = commands.folder / "config.yaml"
    config.write_text(CONFIG.partition("autotune:")[0])
    done = commands("init", "--config", "config.yaml", "--yes", "--", sys.executable, "train.py", "config.yaml").well()
    assert "during the preflight trial, overwritten or removed: checkpoints/last.ckpt" in done.stderr
    assert "autotune:" in config.read_text()
    assert checkpoint.read_bytes() == TWO_WEEKS
