"""Commit of a git project, read from git's files: a repository may name programs, which git itself would start."""

import re
from pathlib import Path

from autotune.files import read_beginning

_REF_BYTES = 1 << 20
_REF = re.compile(r"ref: (refs/[^\x00-\x20~^:?*\[\\]+)")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def git_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder; None outside a repository."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # a worktree, or a submodule
            named = _line(git).removeprefix("gitdir: ")
            git = place / named
        if git.is_dir():
            return _head(git)
    return None


def _head(git: Path) -> str | None:
    head = _line(git / "HEAD")
    if (match := _REF.fullmatch(head)) is None:
        return head if _COMMIT.fullmatch(head) else None
    common = git / _line(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, common):
        commit = _line(place / match[1])
        if _COMMIT.fullmatch(commit):
            return commit
    for line in read_beginning(common / "packed-refs", _REF_BYTES).decode(errors="replace").splitlines():
        commit, _, name = line.partition(" ")
        if name == match[1] and _COMMIT.fullmatch(commit):
            return commit
    return None


def _line(path: Path) -> str:
    """Return the first line of a file of git's; empty if it cannot be read."""
    return read_beginning(path, 4096).decode(errors="replace").partition("\n")[0].strip()
