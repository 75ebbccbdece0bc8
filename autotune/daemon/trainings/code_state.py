"""State of a training's code, read without starting anything, to see later whether it was edited."""

import os
from collections.abc import Sequence
from pathlib import Path

from autotune.process.git_commit import git_commit

_MOST_SCRIPTS = 16


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
