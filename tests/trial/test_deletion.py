"""Deletion of a trainer's files: all of them, and nothing else."""

import os
from pathlib import Path

import pytest

from autotune.trial.deletion import delete_tree


def nested(top: Path, depth: int, name: str = "deeper") -> None:
    """Make nested folders, each with a file in it; too many for a path, so each is made from inside the last."""
    top.mkdir(parents=True, exist_ok=True)
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)


def test_any_depth_is_deleted(in_memory: Path) -> None:
    """Deeper than calls may be nested."""
    nested(in_memory / "outputs", 1100)
    assert delete_tree(in_memory / "outputs")
    assert list(in_memory.iterdir()) == []


def test_deletion_ends_when_its_time_is_over(in_memory: Path) -> None:
    """The rest stays then, and a second call deletes it."""
    nested(in_memory / "outputs", 50)
    assert not delete_tree(in_memory / "outputs", lambda: True)
    assert (in_memory / "outputs").exists()
    assert delete_tree(in_memory / "outputs")
    assert list(in_memory.iterdir()) == []


def test_links_go_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    """At any level, and in place of the folder itself."""
    precious = tmp_path / "precious"
    nested(precious, 2)
    nested(tmp_path / "outputs", 2)
    (tmp_path / "outputs" / "deeper" / "link").symlink_to(precious)
    (tmp_path / "top").symlink_to(precious)
    assert delete_tree(tmp_path / "outputs")
    assert delete_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == [precious]
    assert (precious / "deeper" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_another_file_system_is_left_alone(small_disk: Path) -> None:
    """A mount below the folder is no output of the trainer."""
    (small_disk / "precious").write_text("x")
    assert not delete_tree(small_disk.parent)
    assert (small_disk / "precious").exists()
