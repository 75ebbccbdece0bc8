"""Characters of single values, in the style of the ones that they replace.

Floats are written so that YAML 1.1 and 1.2 parsers read the same number; a bool keeps the file's own words.
"""

import json
import math
import re

from autotune.config.document import Document, Leaf
from autotune.config.keys import Syntax, shown
from autotune.config.parsers import plain_reading_1_2
from autotune.errors import ConfigError
from autotune.records import Scalar

# Words that no YAML construct starts with; all others are quoted.
_PLAIN = re.compile(r"[^\W\d_](?:[\w./+-]|(?<=\w) (?=\w))*|[./]{1,2}[\w./+-]*[\w/]|_[\w./+-]*")


def write_scalar(value: Scalar, old: Leaf) -> str:
    """Return the characters for a value, in the style and the syntax of the old one.

    Raises:
        ValueError: JSON or TOML has no such value.
    """
    if isinstance(value, str):
        if old.syntax is Syntax.YAML:
            return _yaml_text(value, old.style)
        return json.dumps(value) if old.syntax is Syntax.JSON else _toml_text(value, old.style)
    if isinstance(value, bool):
        return _write_bool(value, old)
    if value is not None:
        return _write_number(value, old)
    if old.syntax is Syntax.TOML:
        raise ValueError("TOML cannot say None")
    return old.text if old.text in ("null", "Null", "NULL", "~") and old.style is None else "null"


def new_scalar(value: Scalar, *, style: str | None = None) -> str:
    """Return the characters for a new value, on one line, that both parsers read alike.

    Args:
        style: The quote character for a text; None quotes it where it has to be.
    """
    if isinstance(value, str):
        return _yaml_text(value, style)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _write_float(value) if isinstance(value, float) else str(value)


def _write_bool(value: bool, old: Leaf) -> str:
    pairs = (("true", "false"), ("yes", "no"), ("on", "off")) if old.syntax is Syntax.YAML else ()
    word = old.text.lower()
    pair = next((pair for pair in pairs if word in pair), ("true", "false"))
    new = pair[0 if value else 1]
    if old.style is not None or word not in pair:
        return new
    return new.upper() if old.text.isupper() else new.capitalize() if old.text[0].isupper() else new


def _write_number(value: int | float, old: Leaf) -> str:
    if (
        isinstance(value, float)
        and value.is_integer()
        and isinstance(old.value, int)
        and not isinstance(old.value, bool)
    ):
        value = int(value)
    elif isinstance(old.value, float) and abs(value) < 2**53:  # below, floats hold each whole number
        value = float(value)
    if isinstance(value, int):
        if old.syntax is Syntax.TOML and value.bit_length() > 63:  # and a sign
            raise ValueError("TOML's whole numbers have 64 bits")
        return str(value)
    if old.syntax is not Syntax.YAML and not math.isfinite(value):
        if old.syntax is Syntax.JSON:
            raise ValueError(f"JSON cannot say {shown(value)}")
        return str(value)
    return _write_float(value, exponent="e" in old.text.lower() and not old.text.lower().startswith("0x"))


def _write_float(value: float, *, exponent: bool = False) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    if exponent and "e" not in text:
        text = next(short for digits in range(17) if float(short := f"{value:.{digits}e}") == value)
    mantissa, e, power = text.partition("e")
    # PyYAML wants a point in the mantissa and a sign on the power, or it reads a string.
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(power):+03d}" if e else text


def _yaml_text(value: str, style: str | None) -> str:
    if style is None and _PLAIN.fullmatch(value) and _reads_as_text(value):
        return value
    if style == '"' or not value.isprintable():
        return _double_quoted(value, "\\x{:02x}")
    return "'" + value.replace("'", "''") + "'"


def _toml_text(value: str, style: str | None) -> str:
    is_literal = style == "'" and "'" not in value and value.isprintable()
    return f"'{value}'" if is_literal else _double_quoted(value, "\\u{:04x}")


def _double_quoted(value: str, short: str) -> str:
    """Return a text in double quotes, with escapes for what cannot be seen; the short ones up to 0xff."""
    return '"' + "".join(_escaped(character, short) for character in value) + '"'


def _escaped(character: str, short: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in '"\\' else character
    code = ord(character)
    return (short if code < 0x100 else "\\u{:04x}" if code < 0x10000 else "\\U{:08x}").format(code)


def _reads_as_text(word: str) -> bool:
    try:
        return Document.parse(f"a: {word}\n").leaves[0].reading_1_1 == word == plain_reading_1_2(word)
    except (ConfigError, ValueError):  # `._` looks like a number, and is none
        return False
