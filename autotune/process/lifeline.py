"""Lifeline of a search that the daemon started: a pipe that closes when the daemon is gone, whatever ends it.

The daemon holds the only writing end. It may write why the search is to end; nobody else writes.
"""

import os
import stat
from typing import Self

VARIABLE = "AUTOTUNE_LIFELINE_FD"
"""Variable that holds the number of the reading end."""

_MOST_BYTES = 1000


class Lifeline:
    """Reading end of a lifeline.

    Args:
        descriptor: The pipe; it is not passed on to programs that this process starts.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._said = b""
        self._is_cut = False

    @classmethod
    def of_environment(cls) -> Self | None:
        """Take the lifeline that this process was started with, so that no other process sees it; None without one."""
        try:
            descriptor = int(os.environ.pop(VARIABLE, ""))
            return cls(descriptor) if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def is_cut(self) -> bool:
        """True once the daemon is gone, or has said why the search is to end."""
        try:
            while not self._is_cut and len(self._said) < _MOST_BYTES:
                more = os.read(self._descriptor, _MOST_BYTES)
                self._said += more
                self._is_cut = not more
        except BlockingIOError:
            pass
        except OSError:
            self._is_cut = True
        return self._is_cut or bool(self._said)

    @property
    def why(self) -> str:
        """Reason for the end, as the daemon gave it; empty if it gave none."""
        return self._said.decode("utf-8", "replace") if self.is_cut else ""
