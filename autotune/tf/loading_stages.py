"""Stages of loading an example, such as reading a file or computing a spectrogram, timed while a pipeline is profiled.

A trainer wraps what each stage does, once, when it builds its pipeline. Under ``autotune profile pipeline`` the times
of all calls are summed up in ``loading_stages.json`` in the trial's folder; anywhere else the function itself is
returned, and nothing is timed.
"""

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

VARIABLE = "AUTOTUNE_PROFILE_STAGES"
"""Environment variable that asks for the times, in a trial of its own."""

FILE = "loading_stages.json"
FORMAT_VERSION = 1

_WRITE_EVERY_S = 0.5

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def in_python(name: str, function: AnyFunction) -> AnyFunction:
    """Return a stage that Python executes, timed where that is wanted.

    Args:
        name: Name of the stage for people: lower-case letters and spaces.
    """
    sums = _wanted()
    if sums is None:
        return function

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.monotonic()
        result = function(*args, **kwargs)
        sums.add(name, time.monotonic() - began_s)
        return result

    return timed  # type: ignore[return-value]  # of the same signature


def in_graph(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stage that TensorFlow executes, timed where that is wanted.

    Each call is reported to Python, which takes some 50 µs of the stage's thread beside its time.

    Args:
        name: Name of the stage for people: lower-case letters and spaces.
    """
    sums = _wanted()
    if sums is None:
        return function

    def add(duration_s: Any) -> None:
        sums.add(name, float(duration_s))

    def timed(*args: Any) -> Any:
        with tf.control_dependencies(tf.nest.flatten(args)):
            began_s = tf.timestamp()
        with tf.control_dependencies([began_s]):
            result = function(*tf.nest.map_structure(tf.identity, args))
        with tf.control_dependencies(tf.nest.flatten(result)):
            duration_s = tf.timestamp() - began_s
        with tf.control_dependencies([tf.numpy_function(add, [duration_s], [])]):
            return tf.nest.map_structure(tf.identity, result)

    return timed


class _Sums:
    """Sums of the times of all stages of this process.

    Args:
        path: File that they are written to, again and again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stages: dict[str, tuple[int, float]] = {}
        self._written_s = 0.0

    def add(self, name: str, duration_s: float) -> None:
        """Add a call; nothing is raised."""
        with self._lock:
            calls, busy_s = self._stages.get(name, (0, 0.0))
            self._stages[name] = calls + 1, busy_s + max(0.0, duration_s)
            if time.monotonic() < self._written_s + _WRITE_EVERY_S:
                return
            self._written_s = time.monotonic()
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        stages = {name: {"calls": calls, "busy_s": busy_s} for name, (calls, busy_s) in self._stages.items()}
        part = f"{self._path}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"v": FORMAT_VERSION, "stages": stages}, file)
        os.replace(part, self._path)


@functools.cache
def _sums(path: str) -> _Sums:
    return _Sums(path)


def _wanted() -> _Sums | None:
    folder = os.environ.get("AUTOTUNE_TRIAL_DIR")
    return _sums(os.path.join(os.path.abspath(folder), FILE)) if folder and os.environ.get(VARIABLE) else None
