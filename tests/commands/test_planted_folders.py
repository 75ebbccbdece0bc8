"""Two users on one machine: folders planted by one are not used by the other's searches, whose own are private.

Mallory attacks. Root is searched as: the Python that runs the tests is often one that nobody else may start. What is
different for other users is tested with the modules that decide it.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.study.storage.lock import sole_search
from tests.commands.conftest import CONFIG, TRAINER
from tests.users import MALLORY, acting_as, only_root
from tests.warm import typed


@pytest.fixture
def mine(shared: Path) -> Path:
    """Project in a place like /tmp."""
    folder = shared / "project"
    folder.mkdir(mode=0o755)
    (folder / "config.yaml").write_text(CONFIG % TRAINER)
    return folder


def autotune(project: Path, *arguments: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Run one command in a project, with a home beside it."""
    return typed(*arguments, cwd=project, env={**os.environ, "HOME": str(project.parent / "home")}, umask=umask)


def modes(folder: Path) -> dict[str, int]:
    """Modes of all files and folders below a folder, but for the outputs of trainers."""
    return {
        str(path.relative_to(folder)): path.lstat().st_mode & 0o777
        for path in folder.rglob("*")
        if "outputs" not in path.relative_to(folder).parts[:-1]
    }


def open_to_others(folder: Path) -> dict[str, str]:
    """Those of them that have another mode than a private one."""
    return {
        name: oct(mode)
        for name, mode in modes(folder).items()
        if mode != (0o700 if (folder / name).is_dir() else 0o600)
    }


@only_root
def test_a_planted_state_folder_is_not_used(mine: Path) -> None:
    """A folder that another user made first, in a place that is open to all, is named and kept away from."""
    with acting_as(MALLORY):
        planted = mine.parent / ".autotune"
        planted.mkdir()
        planted.chmod(0o777)
        (planted / "studies").mkdir(mode=0o777)
    before = modes(planted)
    searched = autotune(mine, "search", "--config", "config.yaml", "--budget", "10s", "--json")
    assert searched.returncode == 0, searched.stderr
    assert modes(planted) == before
    assert f"{planted} is not used: it belongs to user {MALLORY}" in searched.stderr
    state = mine.parent / "home" / ".local" / "state" / "autotune"
    assert json.loads(searched.stdout)["paths"]["journal"].startswith(str(state))
    known = autotune(mine, "status", "--config", "config.yaml")
    assert known.returncode == 0
    assert f"{planted} is not used" in known.stderr
    refused = autotune(mine, "search", "--config", "config.yaml", "--state-dir", str(planted))
    assert refused.returncode == 1
    assert f"belongs to user {MALLORY}" in refused.stderr
    assert modes(planted) == before


@only_root
def test_nobody_else_gets_at_the_folder_of_a_trial(mine: Path) -> None:
    """The trial's folder cannot be renamed, looked into, or found by another user while it is in use."""
    config = mine / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: crashes\nout:"))  # and so it is over soon
    autotune(mine, "search", "--config", "config.yaml", "--budget", "20s")
    state = mine / ".autotune"
    (trial,) = (path for path in (state / "trials").glob("*/*-000"))
    with acting_as(MALLORY):
        for path in (trial, state):
            with pytest.raises(PermissionError):
                path.rename(mine.parent / "mine")
        with pytest.raises(PermissionError):
            os.listdir(state)


@pytest.mark.parametrize("state_dir", [None, "state"])
def test_all_that_a_search_makes_is_private(state_dir: str | None, mine: Path) -> None:
    """Folders 0700 and files 0600, with a umask that takes nothing away, also in a folder that all may read."""
    place = mine / (state_dir or ".autotune")
    options = ("--state-dir", state_dir) if state_dir else ()
    if state_dir:
        place.mkdir(mode=0o755)
    (mine / "checkpoints").mkdir()
    (mine / "checkpoints" / "last.ckpt").write_text("precious")
    for command in (
        ("search", "--budget", "12s"),
        ("apply", "--trial", "1", "--force"),
        ("revert", "--force"),
    ):
        done = autotune(mine, command[0], "--config", "config.yaml", *command[1:], *options, umask=0)
        assert done.returncode == 0, done.stderr
    found = modes(place)
    for name in ("studies", "trials", "searches", "cache", "backups"):
        assert sum(path.startswith(f"{name}/") for path in found) or name == "cache"
    assert any(name.endswith("steps.jsonl") or "/steps." in name for name in found)
    assert any(name.endswith("stderr.log") for name in found)
    assert any(name.endswith("sitecustomize.py") for name in found)
    assert open_to_others(place) == {}


def test_the_umask_of_a_trainer_stays_the_users(mine: Path) -> None:
    """Files of a trainer have the mode that they would have without autotune."""
    trainer = mine / "train.py"
    trainer.write_text("import os, sys; m = os.umask(0); print(f'umask {m:o}', flush=True); sys.exit(1)")
    (mine / "config.yaml").write_text(CONFIG % trainer)
    autotune(mine, "search", "--config", "config.yaml", "--budget", "20s", umask=0o027)
    (said, *_) = (path.read_text() for path in (mine / ".autotune" / "trials").glob("*/*/stdout.log"))
    assert said == "umask 27\n"


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    """The file that it leads to is not emptied."""
    (tmp_path / "thesis.txt").write_text("all of it")
    lock = tmp_path / "study.search"
    lock.symlink_to(tmp_path / "thesis.txt")
    with pytest.raises((OSError, AutotuneError)), sole_search(lock, "study"):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_a_fifo_in_the_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    """The lock is refused at once."""
    lock = tmp_path / "study.search"
    os.mkfifo(lock)
    with pytest.raises((OSError, AutotuneError)), sole_search(lock, "study"):
        pass
