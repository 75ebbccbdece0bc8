"""Exceptions that are the machine's doing, and those that are bugs."""

import errno
import os

import pytest

from autotune.errors import StudyError
from autotune.process import expected


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "ulimit -a"),
        (RuntimeError("can't start new thread"), "ulimit -a"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -a"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -a"),
        (ImportError("libx.so.1: failed to map segment from shared object"), "ulimit -a"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), "/data/x: No space left on device"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/x"), "is writable"),
    ],
)
def test_errors_of_the_machine_have_a_remedy(error: BaseException, words: str) -> None:
    """Limits and files have each their own."""
    assert words in str(expected(error))


@pytest.mark.parametrize(
    "error", [RuntimeError("other"), ImportError("No module named 'x'"), ValueError(), KeyError(1)]
)
def test_a_bug_stays_one(error: BaseException) -> None:
    """Nobody can mend it with a limit."""
    assert expected(error) is None


def test_our_own_errors_stay_as_they_are() -> None:
    """An expected error is not wrapped again."""
    error = StudyError("x")
    assert expected(error) is error
