"""Resource limits of this process, and the environment that child processes inherit."""

import errno
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import AutotuneError

_EXHAUSTED_ERRNOS = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
_IMPORT_FAILURES = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory protection")


def expected(error: BaseException) -> AutotuneError | None:
    """Translate an error of the machine, e.g. of a file or a resource limit; None for a bug."""
    if isinstance(error, AutotuneError):
        return error
    text = str(error).lower()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _EXHAUSTED_ERRNOS)
        or (isinstance(error, RuntimeError) and "can't start new thread" in text)
        or (isinstance(error, ImportError) and any(words in text for words in _IMPORT_FAILURES))
    ):
        why = text.strip().splitlines()[-1] if text.strip() else "out of memory"
        return AutotuneError(
            f"out of memory, processes or open files: {why}",
            remedy="Check the limits (ulimit -a) and the other running processes, then run the command again.",
        )
    if isinstance(error, OSError):
        # State of the machine: a missing folder, a full disk, no permission.
        return AutotuneError(
            f"{error.strerror or error}",
            where=str(error.filename) if error.filename else None,
            remedy="Check that the path exists, is writable and has space, then run the command again.",
        )
    return None


# Without memory for its threads, numpy's BLAS library ends the process or raises an obscure error.
_MIN_ADDRESS_SPACE_BYTES = 512 << 20


def require_resources() -> None:
    """Check that numpy can be loaded, which ends the process without a message otherwise.

    Raises:
        AutotuneError: The limit on address space, or on processes and threads, is too low.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _MIN_ADDRESS_SPACE_BYTES:
        raise AutotuneError(
            f"the address space is limited to {limit_bytes >> 20} MiB, {_MIN_ADDRESS_SPACE_BYTES >> 20} MiB are needed",
            remedy="Raise the limit (ulimit -v, or in the batch system), then run the command again.",
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and most <= 4096:  # a higher limit is never reached
        _require_threads(4 + min(os.cpu_count() or 1, 64))


def _require_threads(number: int) -> None:
    """Check that this many threads can be started: numpy's BLAS library would raise SIGINT, like ^C."""
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(number):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise AutotuneError(
            f"the process limit allows {len(started)} more threads, {number} are needed",
            remedy="Raise the limit (ulimit -a shows it, ulimit -u sets it), or stop other processes of yours.",
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()


# Environment of child processes.


STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Variable with the address of a storage, possibly with a password; only workers inherit it."""


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the storage address."""
    return {name: value for name, value in os.environ.items() if name != STORAGE_VARIABLE}


def with_python_path(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return an environment with a folder in front of the user's import path."""
    # An empty entry would mean the working directory.
    places = filter(None, (str(folder), environ.get("PYTHONPATH")))
    return {**environ, "PYTHONPATH": os.pathsep.join(places)}


def settings_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's settings folder by the XDG Base Directory Specification; it may not exist."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    if os.path.isabs(base):  # the specification ignores a relative one
        return Path(base)
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
