"""Times of the stages of loading an example, as `autotune.tf` writes them; anybody could have written it."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "loading_stages.json"
VERSION = 1
VARIABLE = "AUTOTUNE_PROFILE_STAGES"

_MOST_BYTES = 1 << 16
_MOST_STAGES = 32
_NAME = re.compile(r"[a-z][a-z ]{0,30}")
_MOST_CALLS, _LONGEST_S = 10**12, 1e9


@dataclass(frozen=True, kw_only=True)
class LoadingStage:
    """Stage of loading an example.

    Attributes:
        name: Its name.
        examples: Examples that went through it.
        mean_ms: Mean time of one, on the worker that did it.
        fraction: Its part of the time of all stages, 0..1.
    """

    name: str
    examples: int
    mean_ms: float
    fraction: float


def read_loading_stages(path: Path) -> tuple[LoadingStage, ...]:
    """Return the stages in a file, in the order of their first call; empty if there is no file, or it holds rubbish."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        return _parsed(data.decode()) if len(data) <= _MOST_BYTES else ()
    except (OSError, ValueError, RecursionError):
        return ()


def _parsed(text: str) -> tuple[LoadingStage, ...]:
    found = json.loads(text)
    stages = found.get("stages") if isinstance(found, dict) and found.get("v") == VERSION else None
    if not isinstance(stages, dict) or len(stages) > _MOST_STAGES:
        raise ValueError("no stages")
    sums = {name: _sums(name, stage) for name, stage in stages.items()}
    all_s = sum(busy_s for _, busy_s in sums.values())
    return tuple(
        LoadingStage(
            name=name,
            examples=calls,
            mean_ms=1000.0 * busy_s / calls,
            fraction=busy_s / all_s if all_s else 0.0,
        )
        for name, (calls, busy_s) in sums.items()
    )


def _sums(name: str, stage: Any) -> tuple[int, float]:
    if not _NAME.fullmatch(name) or not isinstance(stage, dict):
        raise ValueError("no stage")
    calls, busy_s = stage.get("calls"), stage.get("busy_s")
    if isinstance(calls, bool) or not isinstance(calls, int) or not 0 < calls <= _MOST_CALLS:
        raise ValueError("no number of calls")
    if isinstance(busy_s, bool) or not isinstance(busy_s, int | float) or not math.isfinite(busy_s):
        raise ValueError("no time")
    if not 0 <= busy_s <= _LONGEST_S:
        raise ValueError("a time out of its range")
    return calls, float(busy_s)
