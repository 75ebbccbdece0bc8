"""Trial folder: made, marked, read, emptied and deleted, and never anything outside it."""

import os
from pathlib import Path

import pytest

from autotune.trial.folders import MARKER, TrialFolder, delete_left, delete_tree
from tests.until import until


def made(path: Path) -> TrialFolder:
    """A folder of ours."""
    folder = TrialFolder(path)
    folder.create()
    return folder


def test_the_tail_of_stderr_is_whole_lines(tmp_path: Path) -> None:
    """Of much output the last 32 KiB are shown, from the start of a line; bad bytes do no harm."""
    folder = made(tmp_path / "trial")
    assert folder.stderr_tail() == ""
    folder.stderr.write_bytes(b"".join(b"line %06d\n" % n for n in range(10_000)) + b"\xff\n")
    tail = folder.stderr_tail()
    assert 32_000 < len(tail) <= 32 << 10
    assert tail.startswith("line ")
    assert tail.endswith("line 009999\n\ufffd\n")


def test_what_there_is_no_time_for_goes_apart(tmp_path: Path) -> None:
    """The outputs are gone from their place at once, whole, and a process deletes them that nobody waits for."""
    folder = made(tmp_path / "study" / "trial")
    for number in range(100):
        (folder.outputs / f"{number}.npy").write_text("x")
    folder.discard_outputs(lambda: True)
    assert not folder.outputs.exists()
    until(lambda: not list(folder.path.glob(".deleted-*")))
    folder.delete(lambda: True)
    assert not folder.path.exists()
    until(lambda: not list(folder.path.parent.glob(".deleted-*")))


def test_what_a_killed_process_did_not_delete_goes_with_the_next_search(tmp_path: Path) -> None:
    """Whatever was moved aside is found again."""
    left = tmp_path / "study" / ".deleted-0123456789abcdef"
    (left / "outputs").mkdir(parents=True)
    delete_left(left.parent, lambda: False)
    assert not any(left.parent.iterdir())


@pytest.mark.parametrize("where", ["in outputs", "as outputs", "as the folder"])
def test_links_are_not_followed(where: str, tmp_path: Path) -> None:
    """A link that a trainer put anywhere never leads a deletion out of the folder."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    folder = made(tmp_path / "trial")
    if where == "in outputs":
        (folder.outputs / "link").symlink_to(precious)
    elif where == "as outputs":
        folder.outputs.rmdir()
        folder.outputs.symlink_to(precious)
    else:
        (precious / MARKER).write_text("")
        folder = TrialFolder(tmp_path / "link")
        folder.path.symlink_to(precious)
    folder.discard_outputs()
    folder.delete()
    assert (precious / "thesis.txt").exists()


def test_what_is_not_ours_is_never_deleted(tmp_path: Path) -> None:
    """Without the marker, or with a link for one, nothing is touched."""
    folder = TrialFolder(tmp_path / "trial")
    folder.outputs.mkdir(parents=True)
    folder.discard_outputs()
    folder.delete()
    assert folder.outputs.exists()
    (folder.path / MARKER).symlink_to(os.devnull)
    folder.delete()
    assert folder.outputs.exists()


def test_what_cannot_be_deleted_is_said(tmp_path: Path, caplog, monkeypatch) -> None:
    """A file that will not go leaves a warning that names it, and no error."""
    folder = made(tmp_path / "trial")
    (folder.outputs / "checkpoint").write_text("x")

    # Root may delete anything, so the refusal of a read-only mount has to be played.
    monkeypatch.setattr("autotune.trial.folders.delete_tree", lambda *_: False)
    folder.discard_outputs()
    assert f"{folder.outputs} could not be deleted completely" in caplog.text


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
