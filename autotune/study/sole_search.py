"""Lock that keeps a second search, or worker, of one study off this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autotune.errors import StudyBusy, StudyError
from autotune.files import open_regular


@contextmanager
def sole_search(path: Path, study: str) -> Iterator[None]:
    """Hold a study for one search on this machine.

    Args:
        path: Lock file of the search; it names the holder for the message to others.

    Raises:
        StudyBusy: Another search holds it.
    """
    with _locked(path, study) as file:
        file.truncate(0)
        file.write(b"%d" % os.getpid())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held: the next boot's has another name


def _locked(path: Path, study: str) -> BinaryIO:
    """Open and lock the file of that path, and not one that its holder has just deleted."""
    while True:
        try:
            file = open_regular(path, append=True, create=True)
        except OSError as error:
            raise StudyError(
                f"the lock of this study cannot be used: {error.strerror}",
                where=str(path),
                remedy="Take away what is in its place, or choose another place with --state-dir.",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read(20)
            raise StudyBusy(
                f"another search or worker of this machine is working on study {study}"
                + (f" (process {int(holder)})" if holder.isdigit() else ""),
                remedy="Wait until it ends, or end it with ^C in its terminal"
                + (f" or with kill {int(holder)}" if holder.isdigit() else "")
                + "; then run the same command again.",
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()
