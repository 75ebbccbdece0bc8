"""The trial's copies of configs, for a trainer that opens them by a name of its own: ``open("config.yaml")``."""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
from typing import Any

from autotune.trainee.instrumentation import Instrumentation

VARIABLE = "AUTOTUNE_CONFIGS"
"""Environment variable that holds the paths of the copies as JSON, by those of the user's files."""


def install(instrumentation: Instrumentation) -> None:
    """Have Python open a copy where the trainer opens the user's file to read it."""
    copies = json.loads(os.environ[VARIABLE])
    opened = _Open(io.open, copies, instrumentation)
    for owner in (builtins, io):
        instrumentation.put(owner, "open", opened)


class _Open:
    """The function ``open``; an object, since a function of Python's would be a method where a class holds it."""

    def __init__(self, original: Any, copies: dict[str, str], instrumentation: Instrumentation) -> None:
        functools.update_wrapper(self, original)
        self._original, self._instrumentation = original, instrumentation
        self._copies = {os.path.realpath(path): copy for path, copy in copies.items()}
        self._names = {os.path.basename(path) for path in (*copies, *self._copies)}

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            file = self._instead(file, mode)
        except Exception as error:
            self._instrumentation.failed(error)
        return self._original(file, mode, *args, **kwargs)

    def _instead(self, file: Any, mode: str) -> Any:
        if not isinstance(file, (str, os.PathLike)) or not set(mode).isdisjoint("wax+"):
            return file
        name = os.fspath(file)
        if not isinstance(name, str) or os.path.basename(name) not in self._names:
            return file
        return self._copies.get(os.path.realpath(name), file)
