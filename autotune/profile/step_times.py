"""Times that the profiler inside a trainer has written: parsed as data that anybody could have made."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "step_phases.json"
VERSION = 1
FUNCTIONS = frozenset({"data", "copy", "forward", "loss", "gradients", "update", "metrics", "whole", "step"})
PHASES = ("data", "copy", "forward", "loss", "backward", "optimizer", "rest")
"""Phases of a step with marks."""

_MOST_BYTES = 1 << 20
_MOST_ROUNDS = 1000
_LONGEST_MS = 1e7
_MOST_CHARS = 300
_LATEST_S = 1e9
_MOST_PLACES, _MOST_NAMES = 50, 5
_MOST_TENSORS = 1e9


@dataclass(frozen=True, kw_only=True)
class Place:
    """Tensors or operations of one kind on one device.

    Attributes:
        what: Their kind.
        device: The device.
        count: How many there are.
        names: Names of the first of them.
    """

    what: str
    device: str
    count: int
    names: tuple[str, ...]


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
        marked_ms: Phase → its time in each step with marks, where they make the profile.
        plain_ms: Time of each step without marks, likewise.
        why_not: Function or phase that there is not → the reason.
        places: What is on which device, where there is a GPU.
    """

    held: tuple[tuple[float, float], ...] = ()
    draws: bool = False
    error: str | None = None
    of: str = ""
    compiled: str = ""
    device: str = ""
    batch_size: int | None = None
    times_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    marked_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    plain_ms: tuple[float, ...] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Place, ...] = ()


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
    is_marked = "marked_ms" in found
    times_ms = {} if is_marked else _named_times(found.get("times_ms"), FUNCTIONS)
    marked_ms = _named_times(found["marked_ms"], PHASES) if is_marked else {}
    if (
        len({len(values) for name, values in (*times_ms.items(), *marked_ms.items()) if is_marked or name != "copy"})
        > 1
    ):
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
        marked_ms=marked_ms,
        plain_ms=_times(found.get("plain_ms")) if is_marked else (),
        why_not={
            _known(name, (*FUNCTIONS, *PHASES)): _text(why) for name, why in _mapping(found.get("why_not")).items()
        },
        places=_places(found.get("places", [])),
    )


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object in its place")
    return value


def _named_times(value: Any, names: Collection[str]) -> dict[str, tuple[float, ...]]:
    return {_known(name, names): _times(values) for name, values in _mapping(value).items()}


def _known(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise ValueError(f"an unknown function: {name[:40]!r}")
    return name


def _places(values: Any) -> tuple[Place, ...]:
    if not isinstance(values, list) or len(values) > _MOST_PLACES:
        raise ValueError("no places")
    return tuple(_place(_mapping(value)) for value in values)


def _place(row: Mapping[str, Any]) -> Place:
    names = row.get("names")
    if not isinstance(names, list):
        raise ValueError("no names")
    return Place(
        what=_text(row.get("what")),
        device=_text(row.get("device")),
        count=int(_number(row.get("count"), _MOST_TENSORS)),
        names=tuple(_text(name) for name in names[:_MOST_NAMES]),
    )


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
