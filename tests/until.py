"""Waiting in tests: for a message, a file or a state, with one generous deadline and no bound on how long it takes."""

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 120.0
"""No measure of anything: a test that waits so long has failed on any machine."""


def until(condition: Callable[[], T], what: object = "") -> T:
    """Wait until a condition is true, and return its value.

    Args:
        condition: Looked at every 10 ms.
        what: What is waited for, for the failure's message; called then if it can be.

    Raises:
        AssertionError: It is not true within `DEADLINE_S`.
    """
    ends_s = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        if time.monotonic() > ends_s:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what() if callable(what) else what or condition}")
        time.sleep(0.01)
    return value


def ended(*argv: object, timeout_s: float = DEADLINE_S, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program without input to its end, whatever its status; return what it printed."""
    words = [os.fspath(word) for word in argv]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )
