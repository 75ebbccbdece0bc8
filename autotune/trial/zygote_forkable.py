"""Search of a zygote for imports that it must not make: of what starts threads, touches a device, or would differ.

Part of zygote_process.py, which executes the text of this file in its own namespace: Python 3.9 syntax, and the
standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_PR_SET_PDEATHSIG = 1


def _blas_threads() -> int:
    """Count the threads of OpenBLAS: it starts them at import, and handles forks itself (pthread_atfork)."""
    threads = 0
    with open("/proc/self/maps", "rb") as file:
        libraries = {line.split(None, 5)[5].rstrip(b"\n") for line in file if b"openblas" in line}
    for path in libraries:
        try:
            library = ctypes.CDLL(os.fsdecode(path))  # is loaded already
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                count = getattr(library, prefix + "openblas_get_num_threads" + suffix, None)
                if count is not None:
                    threads += max(count() - 1, 0)
    return threads


def _jemalloc_threads() -> int:
    """Count the threads with which jemalloc gives memory back; it handles forks itself, too (background_thread.c)."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm", "rb") as file:  # it may have ended
            names.append(file.read())
    return names.count(b"jemalloc_bg_thd\n")


def _threads() -> tuple[int, int]:
    """Count the threads of this process, and those that may be among them and survive a fork."""
    threads = len(os.listdir("/proc/self/task"))
    return threads, _blas_threads() + _jemalloc_threads()


def _why_not_forkable(before: tuple[int, int] = (1, 0)) -> str | None:
    """Return the reason for which this process must not be forked any more; None if it may.

    Args:
        before: Threads, see `_threads`, before the import that is in question. OpenBLAS ends its threads at a fork and
            starts them again when they are needed: of a process that was forked, only the growth says something.

    NumPy, SciPy, scikit-learn, pandas, Numba, librosa, PyTorch, Lightning, transformers, JAX, TensorFlow, Keras and
    OpenCV start no threads at import but OpenBLAS's, and jemalloc's where PyArrow is installed, which pandas imports.
    OpenMP's are started by the first parallel loop.
    """
    if len(os.listdir("/proc/self/task")) > before[0]:
        threads, excused = _threads()
        if threads - before[0] > excused - before[1]:
            return "starts threads"
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + number).startswith(_DEVICES):
                return "opens the accelerator's device file"
        except OSError:  # the one that this list was read from
            continue
    return None


def _fork() -> int:
    with warnings.catch_warnings(module=warnings):  # which may be parked: see ParkedModules
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with OpenBLAS's threads; see _blas_threads
        return os.fork()


def _is_import() -> bool:
    """Return whether the finder that calls this was asked for an import, not by importlib.util.find_spec."""
    frame = sys._getframe(2)
    # Other finders, such as the observer's hook, may stand between the import and us.
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "find_spec"
    ):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class OwnModules:
    """Finder of modules that the trainer has itself, in front of installed ones of the same names.

    The zygote cannot import them, and a package that does would get the installed one.

    Args:
        names: Their top-level names.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.is_asked = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._names and _is_import():
            self.is_asked = True
            raise ModuleNotFoundError(f"{name} is the trainer's own", name=name)
        return None


def _place_of(spec: ModuleSpec | None) -> str | None:
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place), None)


def _is_elsewhere(wanted: Mapping[str, Any]) -> bool:
    """Return whether the trainer imported another module than the one that is found here."""
    found = PathFinder.find_spec(wanted["module"]) if wanted["place"] else None
    return found is not None and _place_of(found) != wanted["place"]


def _try(module: str, why_not: Callable[[tuple[int, int]], str | None]) -> tuple[str | None, float]:
    """Import a module in a process of its own first, and find out what that would do to this one.

    Args:
        why_not: Return the reason for which an import must not be made here, from the threads before it.

    Returns:
        The reason for which it must not be imported here, None if it may, and the time that its import took.
    """
    before, begun_s = _threads(), time.monotonic()
    answer, report = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = _fork()
    if process == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(BaseException):
            with contextlib.suppress(BaseException):  # as below
                __import__(module)
            os.write(report, (why_not((1, before[1])) or "").encode("ascii"))
            os._exit(0)
        os._exit(1)
    os.close(report)
    _, status = os.waitpid(process, 0)
    with os.fdopen(answer, "rb", buffering=0) as file:
        os.set_blocking(answer, False)  # a process that the import has started may hold the other end
        why = (file.read() or b"").decode("ascii")
    return why or ("ends the interpreter" if status else None), time.monotonic() - begun_s
