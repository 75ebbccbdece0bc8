"""Plain text in one line: values, changes, and untrusted text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.records import DataFinding, Scalar, Values

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""Control sequences of a terminal: colours, titles, cursor movements (ECMA-48)."""

EFFECT = "effect on training"
"""Heading of the column with the label of a change, such as ``same training``."""


def effect_text(label: str, data: DataFinding | None) -> str:
    """Return a change's effect on the training, and whether its data showed that they stay the same."""
    found = {"same data": ", data verified", "not verified": ", not verified"}
    return f"{label}{found.get(data.effect.value, '')}" if label == "same training" and data else label


def value_text(value: Scalar) -> str:
    """Format a config value as in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return plain(str(value))


def plain(text: str, longest: int = 200) -> str:
    """Turn untrusted text into one line without control sequences."""
    line = "".join(character if character.isprintable() else " " for character in _ESCAPE.sub("", text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def changes_text(changes: Values) -> str:
    """List changes: ``batch_size=32, cache=memory``; section names only if ambiguous."""
    names = short_names(changes)
    return ", ".join(f"{names[path]}={value_text(value)}" for path, value in changes.items()) or "today's values"


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Map key paths to their last part, if unique."""
    last = {path: path.rpartition(".")[2] for path in paths}
    count = Counter(last.values())
    return {path: name if count[name] == 1 else path for path, name in last.items()}


def change_text(values: Values, sentence: str) -> str:
    """Return a recommendation's sentence, with its values."""
    written = ", ".join(f"{path}: {value_text(value)}" for path, value in values.items())
    return sentence if written in sentence else f"{written} ({sentence})"


def purpose_text(purpose: str, pair: int | None) -> str:
    """Return ``explore``, ``simplify``, or ``pair 3`` (from 1)."""
    if pair is not None:
        return f"pair {pair + 1}"
    return "simplify" if purpose == "take back" else purpose


# Escaping of control characters.


def is_safe(text: str) -> bool:
    """Return whether a text has only printable characters, line ends and tabs."""
    return text.isprintable() or all(map(_is_kept, text))


def safe_text(text: str) -> str:
    r"""Replace control and format characters by escapes such as ``\x1b``.

    Keeps line ends (``\r\n`` becomes ``\n``), tabs and spaces.
    """
    return "".join(
        character if _is_kept(character) else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\r\n", "\n")
    )


def _is_kept(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
