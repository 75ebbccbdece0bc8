"""State of a training's code, read without git."""

import subprocess
from pathlib import Path

from autotune.daemon.trainings.code_state import code_state, file_sha256, git_commit


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_commit_is_that_of_git(tmp_path: Path) -> None:
    """On a branch, packed, detached, and in a worktree; none outside a repository."""
    assert git_commit(tmp_path) is None
    repository = tmp_path / "repository"
    repository.mkdir()
    _git(repository, "init", "-q")
    assert git_commit(repository) is None
    _git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    head = _git(repository, "rev-parse", "HEAD").strip()
    (repository / "below").mkdir()
    assert git_commit(repository / "below") == head
    _git(repository, "pack-refs", "--all")
    assert git_commit(repository) == head
    _git(repository, "worktree", "add", "-q", str(tmp_path / "other"))
    assert git_commit(tmp_path / "other") == head
    _git(repository, "checkout", "-q", "--detach")
    assert git_commit(repository) == head


def test_an_edited_script_is_another_state(tmp_path: Path) -> None:
    """Scripts on the command line count with their size and time; other words do not."""
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    argv = ["python", "train.py", "--lr", "0.1", "gone.py"]
    before = code_state(argv, tmp_path)
    assert list(before) == ["train.py"]
    script.write_text("a = 22\n")
    assert code_state(argv, tmp_path) != before


def test_a_config_that_is_gone_has_no_hash(tmp_path: Path) -> None:
    """A folder in its place has none either."""
    assert file_sha256(tmp_path / "none.yaml") is None
    assert file_sha256(tmp_path) is None
