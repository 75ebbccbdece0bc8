"""Plain text of one line: config values, changes of a point, and any text from outside."""

import re

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
    names = [path.rpartition(".")[2] for path in changes]
    parts = []
    for path, value in changes.items():
        short = path.rpartition(".")[2]
        parts.append(f"{short if names.count(short) == 1 else path}={value_text(value)}")
    return ", ".join(parts) or "today's values"
