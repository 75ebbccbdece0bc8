"""Plain text of one line: config values, changes of a point, and any text from outside."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.records import Scalar, Values

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""Control sequences of a terminal: colours, titles, cursor movements (ECMA-48)."""


def value_text(value: Scalar) -> str:
    """Format a config value as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return plain(str(value))


def plain(text: str, longest: int = 200) -> str:
    """Turn text from outside (a trainer, a config, a record) into one line that cannot control the terminal."""
    line = "".join(character if character.isprintable() else " " for character in _ESCAPE.sub("", text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def changes_text(changes: Values) -> str:
    """List the changes of a point: ``batch_size=32, cache=memory``; section names are left out where unambiguous."""
    names = short_names(changes)
    return ", ".join(f"{names[path]}={value_text(value)}" for path, value in changes.items()) or "today's values"


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return for each key path its last part, or all of it where another has the same last part."""
    last = {path: path.rpartition(".")[2] for path in paths}
    count = Counter(last.values())
    return {path: name if count[name] == 1 else path for path, name in last.items()}


def change_text(values: Values, sentence: str) -> str:
    """Return what to do as a sentence that has the values in it."""
    written = ", ".join(f"{path}: {value_text(value)}" for path, value in values.items())
    return sentence if written in sentence else f"{written} ({sentence})"


# Text without control characters, made of any text.


def is_safe(text: str) -> bool:
    """Return True if a text holds nothing but printable characters, line ends and tabs."""
    return text.isprintable() or all(map(_is_kept, text))


def safe_text(text: str) -> str:
    r"""Replace control and format characters by their visible escapes, such as ``\x1b`` and ``\u202e``.

    Printable characters, line ends, tabs and spaces of any width stay; ``\r\n`` is one line end.
    """
    return "".join(
        character if _is_kept(character) else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\r\n", "\n")
    )


def _is_kept(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
