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

_TRUE_FALSE = {"true": "false", "yes": "no", "on": "off"}
_FLOATS_ARE_EXACT_BELOW = 2**53
_NULLS = ("null", "Null", "NULL", "~")
# Words that no YAML construct starts with; all others are quoted.
_PLAIN = re.compile(r"[^\W\d_](?:[\w./+-]|(?<=\w) (?=\w))*|[./]{1,2}[\w./+-]*[\w/]|_[\w./+-]*")


def write_scalar(value: Scalar, old: Leaf) -> str:
    """Return the characters for a value, in the style and the syntax of the old one.

    Raises:
        ValueError: JSON or TOML has no such value.
    """
    if old.syntax is not Syntax.YAML:
        return _write_plain(value, old)
    if value is None:
        return old.text if old.text in _NULLS and old.style is None else "null"
    if isinstance(value, bool):
        return _write_bool(value, old)
    if isinstance(value, str):
        return _write_text(value, old.style)
    number = _like_old(value, old)
    return _write_float(number, exponent=_has_exponent(old)) if isinstance(number, float) else str(number)


def new_scalar(value: Scalar, *, style: str | None = None) -> str:
    """Return the characters for a new value, on one line, that both parsers read alike.

    Args:
        style: The quote character for a text; None quotes it where it has to be.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _write_text(value, style)
    return _write_float(value, exponent=False) if isinstance(value, float) else str(value)


def _write_plain(value: Scalar, old: Leaf) -> str:
    is_json = old.syntax is Syntax.JSON
    if value is None and is_json:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value) if is_json else _write_toml_text(value, old.style)
    number = None if value is None else _like_old(value, old)
    if isinstance(number, float) and not math.isfinite(number) and not is_json:
        return str(number)
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        raise ValueError(f"{old.syntax.value} cannot say {shown(value)}")
    if isinstance(number, int) and not is_json and number.bit_length() > 63:  # and a sign
        raise ValueError("TOML's whole numbers have 64 bits")
    return _write_float(number, exponent=_has_exponent(old)) if isinstance(number, float) else str(number)


def _write_toml_text(value: str, style: str | None) -> str:
    if style == "'" and "'" not in value and value.isprintable():
        return f"'{value}'"
    return f'"{"".join(_escaped_toml(character) for character in value)}"'


def _escaped_toml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _like_old(value: int | float, old: Leaf) -> int | float:
    if isinstance(value, float) and value.is_integer() and _is_int(old.value):
        return int(value)
    if isinstance(old.value, float) and abs(value) < _FLOATS_ARE_EXACT_BELOW:
        return float(value)
    return value


def _has_exponent(old: Leaf) -> bool:
    return "e" in old.text.lower() and not old.text.lower().startswith("0x")


def _is_int(value: Scalar) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _write_bool(value: bool, old: Leaf) -> str:
    word = old.text.lower()
    pair = next((pair for pair in _TRUE_FALSE.items() if word in pair), ("true", "false"))
    new = pair[0] if value else pair[1]
    if old.style is not None or word not in pair:
        return new
    if old.text.isupper():
        return new.upper()
    return new.capitalize() if old.text[0].isupper() else new


def _write_float(value: float, *, exponent: bool) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    if exponent and "e" not in text:
        text = next(short for digits in range(17) if float(short := f"{value:.{digits}e}") == value)
    mantissa, e, power = text.partition("e")
    if not e:
        return text
    # PyYAML wants a point in the mantissa and a sign on the power, or it reads a string.
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(power):+03d}"


def _write_text(value: str, style: str | None) -> str:
    if style is None and _PLAIN.fullmatch(value) and _reads_as_text(value):
        return value
    if style == '"' or not value.isprintable():
        return f'"{"".join(_escaped(character) for character in value)}"'
    return "'" + value.replace("'", "''") + "'"


def _reads_as_text(word: str) -> bool:
    try:
        plain = Document.parse(f"a: {word}\n").leaves[0]
        return plain.reading_1_1 == word and plain_reading_1_2(word) == word
    except (ConfigError, ValueError):  # `._` looks like a number, and is none
        return False


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
