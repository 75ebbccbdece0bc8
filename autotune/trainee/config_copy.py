"""The trial's copies of configs, for a trainer that opens them by a name of its own: ``open("config.yaml")``."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import json
import os
import sys
from typing import Any

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.stream import TRIAL_DIR_VARIABLE

VARIABLE = "AUTOTUNE_CONFIGS"
"""Environment variable that holds the paths of the copies as JSON, by those of the user's files."""

OPENED = "configs.opened"
"""File in the trial's folder that is there once a copy was opened."""


def install(instrumentation: Instrumentation) -> None:
    """Have Python open a copy where the trainer opens the user's file; also to write, which is then for the trial."""
    opened = _Open(io.open, json.loads(os.environ[VARIABLE]))
    owners: list[Any] = [builtins, io]
    if sys.version_info[:2] == (3, 10) and "pathlib" in sys.modules:  # it holds the function itself
        owners.append(getattr(sys.modules["pathlib"], "_NormalAccessor"))  # noqa: B009 -- of that version alone
    for owner in owners:
        instrumentation.put(owner, "open", opened)


class _Open:
    """The function ``open``; an object, since a function of Python's would be a method where a class holds it."""

    def __init__(self, original: Any, copies: dict[str, str]) -> None:
        functools.update_wrapper(self, original)
        self.__module__, self._original = "io", original
        self._copies = {os.path.realpath(path): copy for path, copy in copies.items()}
        self._names = {os.path.basename(path) for path in (*copies, *self._copies)}
        self._told = False

    def __reduce__(self) -> str:
        return "open"  # as the function itself is pickled, by its name

    def __call__(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # `open` itself says what is wrong
            file = self._instead(file)
        return self._original(file, *args, **kwargs)

    def _instead(self, file: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else None
        if not isinstance(name, str) or os.path.basename(name) not in self._names:
            return file
        copy = self._copies.get(os.path.realpath(name))
        if copy is not None and not self._told:
            self._told = True
            self._original(os.path.join(os.environ[TRIAL_DIR_VARIABLE], OPENED), "w").close()
        return file if copy is None else copy
