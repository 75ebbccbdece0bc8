"""Crash of a trial that was forked from a zygote: whether the fork, and not the trainer, may be to blame."""

import signal

from autotune.process.guard import Ended
from autotune.process.memory_evidence import GPU_MEMORY, HOST_MEMORY

_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the first also for want of memory
_SHELL = 128  # a shell passes the signal that ended its command on as an exit status, with this added
_LONGEST = 120


def may_be_the_forks(ended: Ended, stderr_tail: str) -> bool:
    """Return whether a trial that made no step failed in a way that a fresh interpreter may not.

    Args:
        ended: Its end.
        stderr_tail: The last lines of its stderr.

    Returns:
        False for a trial that was stopped, ended well, was killed from outside, or ran out of memory.
    """
    if ended.why is not None or ended.status in (None, 0):
        return False
    if any(ended.status in (-number, _SHELL + number) for number in _SENT_BY_OTHERS):
        return False
    return not HOST_MEMORY.search(stderr_tail) and not GPU_MEMORY.search(stderr_tail)


def crash_in_words(ended: Ended, stderr_tail: str) -> str:
    """Return the last line of what a crashed trial said, printable and short; its exit status if it said nothing."""
    line = next((line.strip() for line in reversed(stderr_tail.splitlines()) if line.strip()), "")
    line = "".join(letter for letter in line if letter.isprintable())[:_LONGEST]
    return line or f"exit status {ended.status}"
