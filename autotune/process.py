"""This process: its resource limits, named in the error where one is hit, and the environment that others inherit."""

import errno
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import AutotuneError

_NO_MORE = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
_NO_ROOM_FOR_CODE = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory protection")


def expected(error: BaseException) -> AutotuneError | None:
    """Translate an error that the machine caused, and no bug, into one that a user can act on; None for anything else.

    Args:
        error: The exception: an `AutotuneError`, an error of a file, or a limit on memory, processes or open files.
    """
    if isinstance(error, AutotuneError):
        return error
    text = str(error).lower()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _NO_MORE)
        or (isinstance(error, RuntimeError) and "can't start new thread" in text)
        or (isinstance(error, ImportError) and any(words in text for words in _NO_ROOM_FOR_CODE))
    ):
        why = text.strip().splitlines()[-1] if text.strip() else "out of memory"
        return AutotuneError(
            f"the system gives this process no more memory, processes or open files: {why}",
            remedy="Look at the limits (ulimit -a) and at what else runs here, then run the command again.",
        )
    if isinstance(error, OSError):
        # The machine's state (a folder gone, a disk full, no permission), wherever it was noticed.
        return AutotuneError(
            f"{error.strerror or error}",
            where=str(error.filename) if error.filename else None,
            remedy="Check that the place exists, may be written to, and has space; then run the command again.",
        )
    return None


# numpy's BLAS library ends the process, or raises an obscure error, where it cannot get memory for its threads.
_LEAST_ADDRESSES_BYTES = 512 << 20


def require_room() -> None:
    """Raise an error if a limit is so low that loading numpy would end the process without a message.

    Raises:
        AutotuneError: The limit on address space, or on processes and threads, is too low.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _LEAST_ADDRESSES_BYTES:
        raise AutotuneError(
            f"the limit on address space is {limit_bytes >> 20} MiB, and {_LEAST_ADDRESSES_BYTES >> 20} are needed",
            remedy="Raise it (ulimit -v, or what a batch system sets), then run the command again.",
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and most <= 4096:  # a limit above this is none
        _require_threads(4 + min(os.cpu_count() or 1, 64))


def _require_threads(number: int) -> None:
    """Raise an error if this many threads cannot be started: numpy's BLAS library would raise SIGINT, like ^C."""
    done = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(number):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise AutotuneError(
            f"the limit on processes leaves room for {len(started)} threads, and {number} are needed",
            remedy="Raise it (ulimit -a shows it, ulimit -u sets it), or end what else you run here.",
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()


# Environment: all of it is inherited, but for what is between autotune and its user.


STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Variable that may hold the address of a storage, with its password. Only workers get it of what a search
starts."""


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the address of the storage."""
    return {name: value for name, value in os.environ.items() if name != STORAGE_VARIABLE}


def settings_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's settings by the XDG Base Directory Specification; it need not exist.

    Args:
        environ: The environment, for ``XDG_CONFIG_HOME`` and ``HOME``.
    """
    base = environ.get("XDG_CONFIG_HOME") or ""
    if os.path.isabs(base):  # a relative one counts as not set
        return Path(base)
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
