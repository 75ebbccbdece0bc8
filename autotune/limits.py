"""Limits that the system sets to this process: looked at before much is loaded, and named where they strike."""

import errno
import os
import resource
import threading

from autotune.errors import AutotuneError

_NO_MORE = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
_NO_THREAD = "can't start new thread"
_NO_ROOM_FOR_CODE = ("failed to map segment", "cannot allocate memory", "cannot apply additional memory protection")


def expected(error: BaseException) -> AutotuneError | None:
    """What the machine, and not a bug, is to blame for, as an error that a user can act on; None for anything else.

    Args:
        error: Whatever was raised: one of ours, the system's word on a file, or a limit on memory, processes or files.
    """
    if isinstance(error, AutotuneError):
        return error
    text = str(error).lower()
    if (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in _NO_MORE)
        or (isinstance(error, RuntimeError) and _NO_THREAD in text)
        or (isinstance(error, ImportError) and any(words in text for words in _NO_ROOM_FOR_CODE))
    ):
        why = text.strip().splitlines()[-1] if text.strip() else "out of memory"
        return AutotuneError(
            f"the system gives this process no more memory, processes or open files: {why}",
            remedy="Look at the limits (ulimit -a) and at what else runs here, then run the command again.",
        )
    if isinstance(error, OSError):
        # The machine's doing (a folder gone, a disk full, no permission), wherever it struck.
        return AutotuneError(
            f"{error.strerror or error}",
            where=str(error.filename) if error.filename else None,
            remedy="Check that the place exists, may be written to, and has space; then run the command again.",
        )
    return None


# numpy's library ends the process, or raises what nobody can name, where it gets less than it needs for its threads.
_LEAST_ADDRESSES_BYTES = 400 << 20
_MOST_LIBRARY_THREADS = 64
_OWN_THREADS = 4
_MANY_PROCESSES = 4096  # a limit above this is none


def require_room() -> None:
    """Refuse to begin where what has to be loaded would end the process without a word of ours.

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
    if most != resource.RLIM_INFINITY and most <= _MANY_PROCESSES:
        _require_threads(_OWN_THREADS + min(os.cpu_count() or 1, _MOST_LIBRARY_THREADS))


def _require_threads(number: int) -> None:
    """Refuse to begin where so many threads cannot be started: numpy's library would raise SIGINT, as if by ^C."""
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
