"""Injection of trial values into the trainer's own calls, and into configs that it opens by a fixed path."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import json
import os
import sys
from types import FrameType
from typing import Any, Callable, Optional

from autotune.trainee.observe import Instrumentation, owner_of
from autotune.trainee.stream import TRIAL_DIR_VARIABLE

VARIABLE = "AUTOTUNE_CODE"
"""Environment variable with the values, as `autotune.config.code.calls_of_trial` writes them."""

MADE = "calls.made"
"""File in the trial's folder: names of the values that were passed to a call, one per line."""

_DATASET = "tensorflow.python.data.ops.dataset_ops:DatasetV2"
PLACES = {
    "keras": {"compile": "keras.src.trainers.trainer:Trainer.compile"},
    "torch": {
        "DataLoader": "torch.utils.data.dataloader:DataLoader.__init__",
        "DistributedDataParallel": "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
    },
    "transformers.training_args": {"TrainingArguments": "transformers.training_args:TrainingArguments.__init__"},
    "transformers.training_args_seq2seq": {
        "Seq2SeqTrainingArguments": "transformers.training_args_seq2seq:Seq2SeqTrainingArguments.__init__"
    },
    "tensorflow": {name: f"{_DATASET}.{name}" for name in ("map", "interleave", "prefetch", "batch", "padded_batch")},
}
"""Imported module → callee → its place in the framework."""

SETTINGS = {"torch": "set_num_threads", "tensorflow": "config.threading.set_intra_op_parallelism_threads"}
"""Imported module → function that is called once, with a number."""

_MOST_FRAMES = 8  # between the trainer's call and the callee: subclasses, and libraries that wrap it


def install(framework: str, instrumentation: Instrumentation) -> None:
    """Inject this trial's values into a framework's calls, and apply its settings, right after the import."""
    trial_values = json.loads(os.environ.get(VARIABLE) or "[]")
    for one in trial_values:
        if one["name"] is None and SETTINGS.get(framework) == one["callee"]:
            instrumentation.attempt(one["callee"], _set, framework, one, instrumentation)
    for callee, place in PLACES.get(framework, {}).items():
        values = [one for one in trial_values if one["callee"] == callee]
        if values:
            instrumentation.attempt(place, _put, place, values, instrumentation)


def _set(framework: str, one: dict[str, Any], instrumentation: Instrumentation) -> None:
    owner, name = owner_of(f"{framework}:{one['callee']}")
    original = getattr(owner, name)

    @functools.wraps(original)
    def called(*_args: Any, **_kwargs: Any) -> Any:
        instrumentation.guarded(_note)([one], set())
        return original(one["value"])

    if one["is_there"]:
        instrumentation.put(owner, name, called)
    else:
        called()


def _put(place: str, values: list[dict[str, Any]], instrumentation: Instrumentation) -> None:
    owner, name = owner_of(place)
    instrumentation.put(owner, name, _with_values(getattr(owner, name), values, instrumentation))


def _with_values(
    original: Callable[..., Any], values: list[dict[str, Any]], instrumentation: Instrumentation
) -> Callable[..., Any]:
    by_file: dict[str, list[dict[str, Any]]] = {}  # by the code's file name
    noted: set[str] = set()

    def values_at(frame: Optional[FrameType], called: Any) -> list[dict[str, Any]]:
        """Return the values of the call in this frame, maybe through a subclass or library."""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code.co_filename not in by_file:
                file = os.path.realpath(code.co_filename)
                by_file[code.co_filename] = [one for one in values if one["file"] == file]
            found = [one for one in by_file[code.co_filename] if _is_at(frame, one)]
            own = code.co_varnames[:1]
            is_subclass = code.co_name == "__init__" and bool(own) and frame.f_locals.get(own[0]) is called
            if found or not (is_subclass or f"{os.sep}site-packages{os.sep}" in code.co_filename):
                return found
            frame = frame.f_back
        return []

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        added, found = None, []
        try:
            found = [] if _each_worker_reads_all(args, kwargs) else values_at(sys._getframe(1), args[0])
            for one in found:
                place = None if one["position"] is None else one["position"] + 1  # after `self`
                if one["name"] == "prefetch":
                    added = one["value"]
                elif place is not None and place < len(args):
                    args = (*args[:place], one["value"], *args[place + 1 :])
                else:
                    kwargs[one["name"]] = one["value"]
        except Exception as error:
            instrumentation.failed(error)
        result = original(*args, **kwargs)
        if added is not None:
            result = result.prefetch(added)
        instrumentation.guarded(_note)(found, noted)
        return result

    return called


def _is_at(frame: FrameType, one: dict[str, Any]) -> bool:
    """Return whether a frame makes this call; before Python 3.11 only its line is known."""
    if sys.version_info >= (3, 11):
        places = list(frame.f_code.co_positions())
        _, line, _, column = places[frame.f_lasti // 2]
        return bool([line, column] == one["end"])
    return bool(one["is_alone"]) and one["lines"][0] <= frame.f_lineno <= one["lines"][1]


def _each_worker_reads_all(args: Any, kwargs: Any) -> bool:
    """Return whether each loader worker would iterate over all of the data."""
    data = args[1] if len(args) > 1 else kwargs.get("dataset")
    return "IterableDataset" in {kind.__name__ for kind in type(data).__mro__}


def _note(values: list[dict[str, Any]], noted: set[str]) -> None:
    new = [one["path"] for one in values if one["path"] not in noted]
    if new:
        noted.update(new)
        with open(os.path.join(os.environ[TRIAL_DIR_VARIABLE], MADE), "a", encoding="utf-8") as file:
            file.write("".join(f"{path}\n" for path in new))


CONFIGS_VARIABLE = "AUTOTUNE_CONFIGS"
"""Environment variable with JSON that maps the paths of the user's files to those of the copies."""

OPENED = "configs.opened"
"""File in the trial's folder that exists once a copy was opened."""


def install_copies(instrumentation: Instrumentation) -> None:
    """Redirect ``open`` from the user's files to the trial's copies, also for writing."""
    opened = _Open(io.open, json.loads(os.environ[CONFIGS_VARIABLE]))
    owners: list[Any] = [builtins, io]
    if sys.version_info[:2] == (3, 10) and "pathlib" in sys.modules:  # it holds a reference to `open`
        owners.append(getattr(sys.modules["pathlib"], "_NormalAccessor"))  # noqa: B009 -- exists in this version only
    for owner in owners:
        instrumentation.put(owner, "open", opened)


class _Open:
    """Replacement of ``open``; a Python function stored in a class would become a method."""

    def __init__(self, original: Any, copies: dict[str, str]) -> None:
        functools.update_wrapper(self, original)
        self.__module__, self._original = "io", original
        self._copies = {os.path.realpath(path): copy for path, copy in copies.items()}
        self._names = {os.path.basename(path) for path in (*copies, *self._copies)}
        self._is_noted = False

    def __reduce__(self) -> str:
        return "open"  # pickled by its name, like the original

    def __call__(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # `open` itself reports the error
            file = self._copy_of(file)
        return self._original(file, *args, **kwargs)

    def _copy_of(self, file: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else None
        if not isinstance(name, str) or os.path.basename(name) not in self._names:
            return file
        copy = self._copies.get(os.path.realpath(name))
        if copy is not None and not self._is_noted:
            self._is_noted = True
            self._original(os.path.join(os.environ[TRIAL_DIR_VARIABLE], OPENED), "w").close()
        return file if copy is None else copy
