"""Reading of JSON and TOML with the parsers of the standard library, which check what our own have found."""

import copy
import json
import math
import tomllib
from collections.abc import Mapping
from datetime import date, time
from typing import Any

from autotune.errors import ConfigError
from autotune.records import Scalar
from autotune.settings.text.syntax import Syntax

_BOM = "\ufeff"
_REMEDY = "Mend this line; it cannot be trained with as it stands either."

Path = tuple[str | int, ...]


def second_reading(syntax: Syntax, text: str, name: str) -> Any:
    """Return what the standard library reads in a text.

    Args:
        syntax: JSON or TOML.
        text: The text; a byte order mark is left out.
        name: The file's name, for errors.

    Raises:
        ConfigError: It reads nothing.
    """
    body = text.removeprefix(_BOM)
    try:
        return json.loads(body) if syntax is Syntax.JSON else tomllib.loads(body)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}", remedy=_REMEDY) from error
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        where = f"{name}:{line}" if line.isdigit() else name
        raise ConfigError(f"not valid TOML: {str(error).partition(' (at ')[0]}", where=where, remedy=_REMEDY) from error
    except (ValueError, RecursionError) as error:  # a number with 5,000 digits; ten thousand brackets
        raise ConfigError(
            f"not readable as {syntax.value}: {error}", where=name, remedy="Is this the file that you meant?"
        ) from error


def with_values(data: Any, values: Mapping[Path, Scalar]) -> Any:
    """Return a copy of a config with other values at these paths."""
    changed = copy.deepcopy(data)
    for path, value in values.items():
        holder = changed
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
    return changed


def differences(one: Any, other: Any, path: Path = ()) -> set[Path]:
    """Return the paths at which two configs differ; ``1`` and ``1.0`` are equal, ``1`` and ``true`` are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            different
            for key in one.keys() | other.keys()
            for different in (
                differences(one[key], other[key], (*path, key)) if key in one and key in other else {(*path, key)}
            )
        }
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return {
            different
            for i, (left, right) in enumerate(zip(one, other, strict=True))
            for different in differences(left, right, (*path, i))
        }
    return set() if _is_same(one, other) else {path}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, date | time) and isinstance(other, str):
        return True  # a date is known by its text here
    return type(one) is type(other) and bool(one == other)
