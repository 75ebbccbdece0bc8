"""Copies of the user's newest checkpoint, from which the trainings of a race go on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.search.problem import open_problem
from autotune.trial import checkpoint_backups
from autotune.trial.checkpoint_backups import CheckpointCopy, NoCopy, copy_newest_checkpoint
from tests.search.simulated import CONFIG

Copied = Callable[[], CheckpointCopy | NoCopy]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copied:
    """Copy the newest checkpoint of the project in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("checkpoint_dir: runs/checkpoints\n" + CONFIG)

    def copy() -> CheckpointCopy | NoCopy:
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
        problem.state.create()
        return copy_newest_checkpoint(problem.trainer, tmp_path / "copy", times=4)

    return copy


def write(name: str, content: bytes, *, age_s: float) -> Path:
    """Write a file of the checkpoint folder so long ago."""
    path = Path("runs", "checkpoints", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    written_s = 1_700_000_000.0 - age_s
    os.utime(path, (written_s, written_s))
    return path


def names(folder: Path) -> set[str]:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_with_the_newest_checkpoint_is_copied(copied: Copied, tmp_path: Path) -> None:
    """And the small file that names it; older checkpoints are not."""
    write("ckpt-1.index", b"1" * 100_000, age_s=5000.0)
    write("ckpt-1.data-00000-of-00001", b"1" * 100_000, age_s=5000.0)
    write("ckpt-2.index", b"2", age_s=1.0)
    newest = write("ckpt-2.data-00000-of-00001", b"22", age_s=0.0)
    write("checkpoint", b"latest: 2", age_s=3000.0)
    copy = copied()
    assert copy.name == "runs/checkpoints/ckpt-2.data-00000-of-00001"
    outputs = tmp_path / "outputs"
    copy.put_into(outputs)
    assert names(outputs / "runs" / "checkpoints") == {"ckpt-2.index", "ckpt-2.data-00000-of-00001", "checkpoint"}
    put = outputs / "runs" / "checkpoints" / newest.name
    assert put.read_bytes() == b"22"
    assert put.stat().st_mtime == newest.stat().st_mtime


def test_the_copy_is_the_users_no_more(copied: Copied, tmp_path: Path) -> None:
    """A training that writes into its copy changes neither the user's file nor what the next one gets."""
    path = write("last.pth", b"good", age_s=0.0)
    copy = copied()
    for place in ("one", "two"):
        copy.put_into(tmp_path / place)
        put = tmp_path / place / path
        assert put.read_bytes() == b"good"
        put.write_bytes(b"bad!")
    assert path.read_bytes() == b"good"


def test_a_checkpoint_that_is_too_large_stays(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is said, with its size."""
    write("last.pth", b"x" * 1000, age_s=0.0)
    monkeypatch.setattr(checkpoint_backups, "MOST_OF_FREE", 0.0)
    found = copied()
    assert "5 copies of runs/checkpoints/last.pth take" in found.why
