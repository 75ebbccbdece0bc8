"""State of a training's config and code, to see later whether they were edited."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from autotune.files import read_beginning

_CONFIG_BYTES = 16 << 20
_REF_BYTES = 1 << 20
_REF = re.compile(r"ref: (refs/[^\x00-\x20~^:?*\[\\]+)")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MOST_SCRIPTS = 16


def file_sha256(path: Path) -> str | None:
    """Return the hash of a config's bytes; None if it cannot be read."""
    try:
        if not path.is_file():
            return None
    except OSError:
        return None
    return hashlib.sha256(read_beginning(path.resolve(), _CONFIG_BYTES)).hexdigest()


def git_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder, read from git's files; None outside a repository."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # a worktree, or a submodule
            named = _line(git).removeprefix("gitdir: ")
            git = place / named
        if git.is_dir():
            return _head(git)
    return None


def code_state(argv: Sequence[str], cwd: Path) -> dict[str, str]:
    """Return what tells one state of the code from another: the commit, and size and time of the command's scripts."""
    state: dict[str, str] = {}
    if (commit := git_commit(cwd)) is not None:
        state["commit"] = commit
    scripts = [word for word in argv if word.endswith((".py", ".sh"))][:_MOST_SCRIPTS]
    for script in scripts:
        try:
            status = os.stat(cwd / script)
        except (OSError, ValueError):
            continue
        state[script] = f"{status.st_size} {status.st_mtime_ns}"
    return state


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
