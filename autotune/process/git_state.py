"""State of the git project that holds a file: its commit, and whether files that git tracks differ from it."""

import os
import subprocess
from pathlib import Path

_LIMIT_S = 10.0
# Nothing that a project's own configuration names is started: no hooks, no file system monitor.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")


def git_state(folder: Path) -> tuple[str, bool] | None:
    """Return the commit of the project that a folder is in, and whether it has changes that are not committed.

    Returns:
        None where there is no git, no project, no commit, or no answer within 10 s.
    """
    commit = _answer(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _answer(folder, "status", "--porcelain", "--untracked-files=no")
    return None if changes is None else (commit.strip(), bool(changes.strip()))


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
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
