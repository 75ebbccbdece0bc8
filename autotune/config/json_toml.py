"""Node trees of JSON and TOML texts, of the same kind as those of YAML.

The parsers of the standard library, which trainers read these texts with, tell no places. So each value in the text is
replaced by a number, and the parser says which keys lead to which number. (tomlkit keeps most texts, but not all: it
puts the tables of one list together, and lets a byte order mark be an error.)
"""

import json
import re
import tomllib
from bisect import bisect_right
from typing import Any

import yaml

from autotune.config.keys import Syntax, shown
from autotune.config.parsers import TAGS, mapping_node
from autotune.errors import ConfigError

DATE_TAG = "date"
"""Tag of a date or a time of TOML, which is no text to a trainer."""

_LINE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_BLOCK = r'"""(?:[^\\]|\\.)*?"""(?:"{0,2}(?!"))|\'\'\'.*?\'\'\'(?:\'{0,2}(?!\'))'
_VALUE = rf"(?P<value>{_BLOCK}|{_LINE}|\d{{4}}-\d\d-\d\d \d\d:[^\s,\]}}#]*|[^\s,\[\]{{}}#]+)"
_REST = rf"{_VALUE}|(?P<opening>[\[{{])|(?P<closing>[\]}}])|#[^\n]*|[^\S\n]+|[\n,]"
_KEYS = rf"(?:[\w-]+|{_LINE})(?:[ \t]*\.[ \t]*(?:[\w-]+|{_LINE}))*[ \t]*"
_HEADER = rf"^[ \t]*\[{{1,2}}[ \t]*{_KEYS}\]{{1,2}}"
_IN_JSON, _IN_BRACKETS, _IN_TABLES = (
    re.compile(f"{passed_over}|{_REST}", re.DOTALL | re.MULTILINE)
    for passed_over in (rf"{_LINE}\s*:", f"{_KEYS}=", f"{_HEADER}|{_KEYS}=")
)


def compose(text: str, name: str, syntax: Syntax) -> yaml.Node:
    """Compose the node tree of a JSON or TOML text.

    Args:
        text: The text, without a byte order mark.

    Raises:
        ConfigError: The parser of the standard library reads nothing, or the place of a value is not clear.
        RecursionError: It is nested too deeply.
    """
    data = _load(text, name, syntax)
    places = _values(text, syntax)
    lines = [0, *(end.end() for end in re.finditer("\n", text))]

    def mark(index: int) -> yaml.Mark:
        line = bisect_right(lines, index) - 1
        return yaml.Mark(name, index, line, index - lines[line], None, 0)

    def tree(numbers: Any) -> yaml.Node:
        if isinstance(numbers, int):
            value, place = values[numbers], places[numbers]
            tag, start, end = TAGS.get(type(value), DATE_TAG), mark(place.start()), mark(place.end())
            quote = re.match("\"{3}|'{3}|[\"']", place[0])
            return yaml.ScalarNode(tag, value if isinstance(value, str) else place[0], start, end, quote and quote[0])
        items = numbers.items() if isinstance(numbers, dict) else enumerate(numbers)
        nodes = {key: tree(inside) for key, inside in items}
        first = min((node.start_mark for node in nodes.values()), key=lambda mark: mark.index, default=mark(0))
        if isinstance(numbers, list):
            return yaml.SequenceNode("tag:yaml.org,2002:seq", [*nodes.values()], first, first, True)
        return mapping_node(nodes.items(), first)

    try:
        ends = [0, *(place.end() for place in places)]
        between = [text[end : place.start()] for end, place in zip(ends, places, strict=False)]
        numbers = _load("".join(f"{before}{i}" for i, before in enumerate(between)) + text[ends[-1] :], name, syntax)
        alone = '{{"x": {}}}' if syntax is Syntax.JSON else "x = {}"
        values = [_load(alone.format(place[0]), name, syntax)["x"] for place in places]
        if repr(_filled(numbers, values)) != repr(data):
            raise ConfigError("another config was read")
    except (ConfigError, LookupError, TypeError) as error:
        why = "the places of its values in the text are not clear"
        remedy = "Please report this file as a bug; keep the values in a file of a simpler form meanwhile."
        raise ConfigError(why, where=name, remedy=remedy) from error
    return tree(numbers)


def _load(text: str, name: str, syntax: Syntax) -> Any:
    mend, check = "Mend this line; it cannot be trained with as it stands either.", "Is this the file that you meant?"
    try:
        return json.loads(text, object_pairs_hook=_distinct) if syntax is Syntax.JSON else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON: {error.msg}", where=f"{name}:{error.lineno}", remedy=mend) from error
    except tomllib.TOMLDecodeError as error:
        why, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        where = f"{name}:{line[1]}" if line else name
        raise ConfigError(f"not valid TOML: {why}", where=where, remedy=mend) from error
    except (ValueError, RecursionError) as error:  # a number with 5,000 digits; ten thousand brackets
        raise ConfigError(f"not readable as {syntax.value}: {error}", where=name, remedy=check) from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(key)} stands twice in one object, and parsers differ on which counts")
    return found


def _values(text: str, syntax: Syntax) -> list[re.Match[str]]:
    """Return the scalars of a valid text that are no keys."""
    found: list[re.Match[str]] = []
    at = depth = 0
    while at < len(text):
        pattern = _IN_JSON if syntax is Syntax.JSON else _IN_BRACKETS if depth else _IN_TABLES
        match = pattern.match(text, at)
        assert match is not None, "each character is a token at least"
        at = match.end()
        depth += (match["opening"] is not None) - (match["closing"] is not None)
        if match["value"] is not None:
            found.append(match)
    return found


def _filled(numbers: Any, values: list[Any]) -> Any:
    """Return what was read with the values themselves in place of their numbers."""
    if isinstance(numbers, dict):
        return {key: _filled(number, values) for key, number in numbers.items()}
    return [_filled(number, values) for number in numbers] if isinstance(numbers, list) else values[numbers]
