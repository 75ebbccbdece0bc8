"""Calls of the trainer's own code, made with a trial's values in the place of those that are written there."""

from __future__ import annotations

import functools
import json
import os
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Optional

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.observer import owner_of
from autotune.trainee.stream import TRIAL_DIR_VARIABLE

VARIABLE = "AUTOTUNE_CODE"
"""Environment variable that holds the values, as `autotune.config.code.calls_of_trial` writes them."""

MADE = "calls.made"
"""File in the trial's folder with the names of the values that a call was made with, a line each."""

_DATASET = "tensorflow.python.data.ops.dataset_ops:DatasetV2"
PLACES = {
    "keras": {"compile": "keras.src.trainers.trainer:Trainer.compile"},
    "torch": {"DataLoader": "torch.utils.data.dataloader:DataLoader.__init__"},
    "transformers.training_args": {"TrainingArguments": "transformers.training_args:TrainingArguments.__init__"},
    "transformers.training_args_seq2seq": {
        "Seq2SeqTrainingArguments": "transformers.training_args_seq2seq:Seq2SeqTrainingArguments.__init__"
    },
    "tensorflow": {name: f"{_DATASET}.{name}" for name in ("map", "interleave", "prefetch", "batch", "padded_batch")},
}
"""What is called, and where it is in its framework, by the module with which that is imported."""

_WITHIN = ("__init__", "wrapper", "wrapped")  # functions between a call and what is called, of those that wrap it
_MOST_FRAMES = 8


def install(framework: str, instrumentation: Instrumentation) -> None:
    """Put the values of this trial into the calls of a framework that has just been imported."""
    told = json.loads(os.environ.get(VARIABLE) or "[]")
    for callee, place in PLACES.get(framework, {}).items():
        values = [one for one in told if one["callee"] == callee]
        if values:
            instrumentation.attempt(place, _put, place, values, instrumentation)


def _put(place: str, values: list[dict[str, Any]], instrumentation: Instrumentation) -> None:
    owner, name = owner_of(place)
    instrumentation.put(owner, name, _with_values(getattr(owner, name), values, instrumentation))


def _with_values(
    original: Callable[..., Any], values: list[dict[str, Any]], instrumentation: Instrumentation
) -> Callable[..., Any]:
    known: dict[CodeType, list[dict[str, Any]]] = {}  # the values in the file of a function
    made: set[str] = set()

    def here(frame: Optional[FrameType]) -> list[dict[str, Any]]:
        """Return the values of the call that is made by the function of a frame, or by one that this wraps."""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code not in known:
                file = os.path.realpath(code.co_filename)
                known[code] = [one for one in values if one["file"] == file]
            line = frame.f_lineno
            found = [one for one in known[code] if one["lines"][0] <= line <= one["lines"][1]]
            if found or code.co_name not in _WITHIN:
                return found
            frame = frame.f_back
        return []

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        added, found = None, []
        try:
            found = here(sys._getframe(1))
            for one in found:
                place = None if one["position"] is None else one["position"] + 1  # behind the object itself
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
        instrumentation.guarded(_note)(found, made)
        return result

    return called


def _note(values: list[dict[str, Any]], made: set[str]) -> None:
    new = [one["path"] for one in values if one["path"] not in made]
    if new:
        made.update(new)
        with open(os.path.join(os.environ[TRIAL_DIR_VARIABLE], MADE), "a", encoding="utf-8") as file:
            file.write("".join(f"{path}\n" for path in new))
