"""State of the git project that holds a file: its commit, and which of the files that git tracks differ from it."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from autotune.files import read_beginning

_LIMIT_S = 10.0
_REF_BYTES = 1 << 20
_REF = re.compile(r"ref: (refs/[^\x00-\x20~^:?*\[\\]+)")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
# Nothing that a project's own configuration names is started: no hooks, no file system monitor.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
_CHANGED = ("-c", "diff.relative=false", "-c", "diff.autoRefreshIndex=true", "diff", "--name-only", "-z")


@dataclass(frozen=True, kw_only=True)
class GitState:
    """State of a git project.

    Attributes:
        commit: The commit that is checked out.
        root: Its folder.
        changed: Paths below it, sorted, of tracked files that differ from the commit.
    """

    commit: str
    root: Path
    changed: tuple[str, ...]


def git_state(folder: Path) -> GitState | None:
    """Return the state of the project that a folder is in, as git says it.

    Returns:
        None where there is no git, no project, no commit, or no answer within 10 s.
    """
    commit = _answer(folder, "rev-parse", "--verify", "HEAD")
    root = _answer(folder, "rev-parse", "--show-toplevel") if commit is not None else None
    changed = _answer(folder, *_CHANGED, "--no-ext-diff", "--no-renames", "HEAD") if root is not None else None
    if commit is None or root is None or changed is None:
        return None
    names = sorted(name for name in changed.split("\0") if name)
    return GitState(commit=commit.strip(), root=Path(root.removesuffix("\n")), changed=tuple(names))


def git_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder, read from git's files; None outside a repository.

    For those who ask often: no process is started.
    """
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # a worktree, or a submodule
            named = _line(git).removeprefix("gitdir: ")
            git = place / named
        if git.is_dir():
            return _head(git)
    return None


def _answer(folder: Path, *words: str) -> str | None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            [*_GIT, "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            env=environ,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


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
