"""Commit of git projects, as git says it and as its files say it."""

import subprocess
from pathlib import Path

from autotune.trial.process_identity import git_commit


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
