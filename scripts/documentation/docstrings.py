"""Descriptions of attributes and arguments, parsed from docstrings for the reference pages."""

import inspect
import re
from collections.abc import Callable
from typing import Any

_ENTRY = re.compile(r"(\w+(?:, \w+)*)(?: \(.*?\))?: (.*)")


def described(thing: type | Callable[..., Any], part: str = "Attributes") -> dict[str, str]:
    """Return the description of each attribute or argument from a docstring.

    Args:
        thing: A class or a function.
        part: Section of its docstring: ``Attributes`` or ``Args``.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        if not line.startswith(" ") and line:
            inside = line == f"{part}:"
        elif inside and (entry := _ENTRY.fullmatch(line.removeprefix("    "))) and line[4:5].strip():
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif inside and line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: _as_markdown(text) for name, text in found.items()}


def summary(thing: Any) -> str:
    """Return the first line of a docstring."""
    return _as_markdown(inspect.cleandoc(thing.__doc__ or "").splitlines()[0])


def _as_markdown(text: str) -> str:
    return text.replace("``", "`")
