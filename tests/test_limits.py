"""Which exceptions are the machine's doing, and which are bugs."""

import errno
import os

import pytest

from autotune.errors import StudyError
from autotune.limits import expected


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "ulimit -a"),
        (RuntimeError("can't start new thread"), "ulimit -a"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -a"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -a"),
        (ImportError("libx.so.1: failed to map segment from shared object"), "ulimit -a"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), "/data/x: No space left on device"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/x"), "may be written to"),
    ],
)
def test_what_the_machine_is_to_blame_for_has_a_remedy(error: BaseException, words: str) -> None:
    """Limits and files, each with its own."""
    assert words in str(expected(error))


@pytest.mark.parametrize(
    "error", [RuntimeError("other"), ImportError("No module named 'x'"), ValueError(), KeyError(1)]
)
def test_a_bug_stays_one(error: BaseException) -> None:
    """Nobody can mend it with a limit."""
    assert expected(error) is None


def test_ours_is_what_it_is() -> None:
    """Told once is enough."""
    error = StudyError("x")
    assert expected(error) is error
