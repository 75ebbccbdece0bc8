"""Times that the profiler inside a trainer has written: parsed as data that anybody could have made."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "step_phases.json"
VERSION = 1
FUNCTIONS = frozenset({"data", "copy", "forward", "loss", "gradients", "update", "metrics", "whole", "step"})

_MOST_BYTES = 1 << 20
_MOST_ROUNDS = 1000
_LONGEST_MS = 1e7
_MOST_CHARS = 300
_LATEST_S = 1e9


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of functions that do more and more of a training step.

    Attributes:
        held: Begin and end of each time for which the trainer was held for it, in their order.
        draws: Whether its loader was at work meanwhile, as in training.
        error: Reason that there are no times; None if there are.
        of: Whose step.
        compiled: Way in which it is executed.
        device: Device that it runs on.
        batch_size: Samples in a batch; None if that is not known.
        times_ms: Function → its time in each round; of each as many, apart from ``copy``.
        why_not: Function that there is not → the reason.
    """

    held: tuple[tuple[float, float], ...] = ()
    draws: bool = False
    error: str | None = None
    of: str = ""
    compiled: str = ""
    device: str = ""
    batch_size: int | None = None
    times_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    why_not: Mapping[str, str] = field(default_factory=dict)


def read_step_times(path: Path) -> StepTimes | None:
    """Return the times in a file; None if there is no file.

    Raises:
        ValueError: It holds something else.
        OSError: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    return parse_step_times(data.decode())


def parse_step_times(text: str) -> StepTimes:
    """Return the times in a text.

    Raises:
        ValueError: It holds something else.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict) or found.get("v", VERSION) != VERSION:
        raise ValueError("no times of a step, or of another version")
    if "error" in found:
        return StepTimes(error=_text(found["error"]))
    times_ms = {_function(name): _times(values) for name, values in _mapping(found.get("times_ms")).items()}
    if len({len(values) for name, values in times_ms.items() if name != "copy"}) > 1:
        raise ValueError("functions were timed in different numbers of rounds")
    size = found.get("batch_size")
    return StepTimes(
        held=_held(found.get("held", [])),
        draws=found.get("draws") is True,
        of=_text(found.get("of")),
        compiled=_text(found.get("compiled")),
        device=_text(found.get("device")),
        batch_size=None if size is None else int(_number(size, 1e12)),
        times_ms=times_ms,
        why_not={_function(name): _text(why) for name, why in _mapping(found.get("why_not")).items()},
    )


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object in its place")
    return value


def _function(name: str) -> str:
    if name not in FUNCTIONS:
        raise ValueError(f"an unknown function: {name[:40]!r}")
    return name


def _times(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not 2 <= len(values) <= _MOST_ROUNDS:
        raise ValueError("too few times, or too many")
    return tuple(_number(value, _LONGEST_MS) for value in values)


def _held(values: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(values, list) or len(values) > _MOST_ROUNDS:
        raise ValueError("no times of the trial")
    held, before_s = [], 0.0
    for pair in values:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("no time of the trial")
        begin_s, end_s = (_number(value, _LATEST_S) for value in pair)
        if not before_s <= begin_s <= end_s:
            raise ValueError("times of the trial out of order")
        held.append((begin_s, end_s))
        before_s = end_s
    return tuple(held)


def _number(value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no number in its place")
    if not 0 <= value <= most:
        raise ValueError("a number out of its range")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text in its place")
    return "".join(letter for letter in " ".join(value.split()) if letter.isprintable())[:_MOST_CHARS]
