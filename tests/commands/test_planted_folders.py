"""Two users on one machine: folders planted by one are not used by the other's searches, whose own are private.

Mallory attacks. Root is searched as: the Python that runs the tests is often one that nobody else may start. What is
different for other users is tested with the modules that decide it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.study.storage.lock import sole_search
from tests.command_line import CONFIG, CommandLine, run_forked, typed
from tests.users import MALLORY, acting_as, only_root


@pytest.fixture
def mine(shared: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Project in a place like /tmp, with a home beside it."""
    monkeypatch.setenv("HOME", str(shared / "home"))
    monkeypatch.delenv("XDG_STATE_HOME")
    folder = shared / "project"
    folder.mkdir(mode=0o755)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "train.py").touch()
    return CommandLine(folder)


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
def test_a_planted_state_folder_is_not_used(mine: CommandLine) -> None:
    """A folder that another user made first, in a place that is open to all, is named and kept away from."""
    place = mine.folder.parent
    with acting_as(MALLORY):
        planted = place / ".autotune"
        planted.mkdir()
        planted.chmod(0o777)
        (planted / "studies").mkdir(mode=0o777)
    before = modes(planted)
    searched = mine.search("--json", budget="1m").well()
    assert modes(planted) == before
    assert f"{planted} is not used: it belongs to user {MALLORY}" in searched.stderr
    assert searched.document["paths"]["journal"].startswith(str(place / "home" / ".local" / "state" / "autotune"))
    known = mine("status", "--config", "config.yaml").well()
    assert f"{planted} is not used" in known.stderr
    assert f"belongs to user {MALLORY}" in mine.search("--state-dir", str(planted)).refusal()
    assert modes(planted) == before


@pytest.mark.parametrize("state_dir", [None, "state"])
def test_all_that_a_search_makes_is_private(state_dir: str | None, mine: CommandLine) -> None:
    """Folders 0700 and files 0600, with a umask that takes nothing away, also in a folder that all may read."""
    place = mine.folder / (state_dir or ".autotune")
    options = ("--state-dir", state_dir) if state_dir else ()
    if state_dir:
        place.mkdir(mode=0o755)
    (mine.folder / "checkpoints").mkdir()
    (mine.folder / "checkpoints" / "last.ckpt").write_text("precious")
    for verb, *words in (("search", "--budget", "1m"), ("apply", "--trial", "2", "--force"), ("revert", "--force")):
        typed_words = (verb, "--config", "config.yaml", *words, *options)
        run_forked(*typed_words, cwd=mine.folder, simulator=mine.simulator, umask=0).well()
    found = modes(place)
    for name in ("studies", "trials", "searches", "backups"):
        assert any(path.startswith(f"{name}/") for path in found)
    assert open_to_others(place) == {}


_SAYS_ITS_UMASK = """\
import os, sys
from autotune.trainee import step

mask = os.umask(0)
print(f"umask {mask:o}", flush=True)
open(sys.argv[1]).read()
step(samples=4)
sys.exit(1)
"""


@only_root
def test_the_files_of_a_real_trial_are_private_and_the_umask_of_its_trainer_is_the_users(mine: CommandLine) -> None:
    """Files of a trainer have the mode that they would have without autotune; nobody else gets at its folder."""
    (mine.folder / "train.py").write_text(_SAYS_ITS_UMASK)
    (mine.folder / "config.yaml").write_text("data: {batch_size: 4}\n")
    words = ("init", "--config", "config.yaml", "--yes", "--", sys.executable, "train.py", "config.yaml")
    done = typed(*words, cwd=mine.folder, umask=0o002)
    assert "training ended after 1 step" in done.stderr
    state = mine.folder / ".autotune"
    (trial,) = state.glob("trials/*/preflight-*")
    assert (trial / "stdout.log").read_text() == "umask 2\n"
    found = modes(trial)
    assert any(name.startswith("steps.") for name in found)
    assert {"stderr.log", "inject/sitecustomize.py"} <= found.keys()
    assert open_to_others(state) == {}
    with acting_as(MALLORY):
        for path in (trial, state):
            with pytest.raises(PermissionError):
                path.rename(mine.folder.parent / "mine")
        with pytest.raises(PermissionError):
            os.listdir(state)


@pytest.mark.parametrize("plant", [os.mkfifo, lambda lock: lock.symlink_to("thesis.txt")], ids=["fifo", "link"])
def test_what_stands_in_the_place_of_a_lock_is_refused(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    """A link is not followed, so that no file is emptied, and a FIFO is not waited for."""
    (tmp_path / "thesis.txt").write_text("all of it")
    lock = tmp_path / "study.search"
    plant(lock)
    with pytest.raises((OSError, AutotuneError)), sole_search(lock, "study"):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
