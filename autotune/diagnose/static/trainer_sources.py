"""Text of a trainer's own sources."""

from autotune.files import read_beginning
from autotune.problem.problem import Problem
from autotune.problem.trainer_code import trainer_files

_READ_BYTES = 1 << 20  # of each


def trainer_text(problem: Problem) -> bytes:
    """Return the text of the script that the command starts and of the modules beside it; empty if it starts none."""
    paths = trainer_files(problem.command, problem.settings.folder) if problem.command else ()
    return b"\n".join(read_beginning(path.resolve(), _READ_BYTES) for path in paths)
