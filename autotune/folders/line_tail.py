"""Whole lines of a file that somebody else appends to, read a bit at a time."""

import os
import stat
from pathlib import Path


class LineTail:
    """File of lines, and the position up to which it was read.

    Args:
        path: The file; it need not exist yet.
        longest_bytes: Longest line that counts; longer ones are replaced by empty ones.

    Attributes:
        is_readable: False once something that is no regular file was found in its place.
    """

    def __init__(self, path: Path, *, longest_bytes: int) -> None:
        self._path = path
        self._longest_bytes = longest_bytes
        self._offset = 0
        self._torn = b""
        self._skipping = False  # within a line that is too long
        self.is_readable = True

    def read(self, limit_bytes: int) -> list[bytes]:
        """Return the whole lines among the next bytes of the file; a last line without its newline is kept."""
        if not self.is_readable:
            return []
        try:
            # Not through a link, and never waiting for the writer of a fifo of that name.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.is_readable = False
                return []
            data = os.pread(descriptor, limit_bytes, self._offset)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        if self._skipping and lines:
            lines[0] = b""  # the end of the long line, counted as one that says nothing
            self._skipping = False
        if len(self._torn) > self._longest_bytes:
            self._skipping = True
        if self._skipping:
            self._torn = b""
        return lines
