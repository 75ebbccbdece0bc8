"""FIFOs, links, devices and folders where autotune's own files are: nothing is waited for, and nothing followed."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, project_in, toy

NAMES = (
    "config.yaml",
    "imports.jsonl",
    "read.test",
    "result.json",
    "samples.jsonl",
    "stderr.log",
    "stdout.log",
    "steps.1.0.jsonl",
    "unfit.txt",
    "zygote.log",
)


def replace(path: Path, kind: str, victim: Path) -> None:
    """Put something else in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim)


def spoil(trial: Path, kind: str, victim: Path) -> None:
    """Replace every file of a trial and of its search, and make the folder of the next trial with the same things."""
    for name in NAMES:
        replace(trial / name, kind, victim)
    number = re.search(r"[0-9]+$", trial.name)
    assert number, trial
    following = trial.with_name(f"{trial.name[: number.start()]}{int(number[0]) + 1:0{len(number[0])}d}")
    if kind != "folder" and not following.exists():
        (following / "inject" / "_autotune_trainee").mkdir(parents=True)
        shutil.copy(trial / ".autotune-trial", following)
        for name in (*NAMES, "inject/sitecustomize.py", "inject/_autotune_trainee/loop.py"):
            replace(following / name, kind, victim)
    for path in (trial.parents[2] / "searches").iterdir():
        replace(path, kind, victim)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "device"])
def test_a_trainer_that_replaces_our_files(kind: str, tmp_path: Path) -> None:
    """The search ends with an answer, and the target of a link is as it was."""
    victim = tmp_path / "thesis.txt"
    victim.write_text("all of it")

    def train(config: Mapping[str, Any]) -> Training:
        spoil(autotune.simulator.plans[-1].folder, kind, Path("/dev/zero") if kind == "device" else victim)
        return toy(config)

    autotune = project_in(tmp_path / "project", train)
    done = autotune.search("--json", budget="1m")
    assert done.document["trials"] >= 2, done.stderr
    assert victim.read_text() == "all of it"
    assert autotune("status", "--config", "config.yaml", "--json").document["trials"] == done.document["trials"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.yaml", "config.autotune.yaml"])
def test_a_fifo_for_a_config_is_refused(name: str, simulated: CommandLine) -> None:
    """Reading one that nobody writes into would take for ever; the same for the section in a file of its own."""
    (simulated.folder / "config.yaml").write_text("data: {batch_size: 4}\n")
    (simulated.folder / name).unlink(missing_ok=True)
    os.mkfifo(simulated.folder / name)
    done = simulated("search", "--config", "config.yaml", "--dry-run")
    assert done.returncode == 1
    assert f"{name}: this is no ordinary file" in done.stderr


def test_a_pipe_for_a_config_is_refused(simulated: CommandLine) -> None:
    """A pipe, ``--config <(...)``, can be read once only, and cannot be written to."""
    ours, theirs = os.pipe()
    os.write(theirs, (simulated.folder / "config.yaml").read_bytes())
    os.close(theirs)
    done = simulated("search", "--dry-run", "--config", f"/dev/fd/{ours}")
    os.close(ours)
    assert done.returncode == 1
    assert "this is no ordinary file" in done.stderr
