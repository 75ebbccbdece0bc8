"""Traversal of PyYAML's node trees: entries of mappings with duplicate and merge keys resolved."""

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator

import yaml

from autotune.config.parsers import MERGE_TAG
from autotune.errors import ConfigError

Entry = tuple[str | int, yaml.Node, tuple[int, ...], bool]
"""Entry of a mapping or list: key or position, node, place below, whether a merge key brought it."""


def kind(node: yaml.Node) -> str:
    """Return the kind of a node, for messages."""
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def key_text(node: yaml.Node) -> str:
    """Return a key as it is written."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def entries(node: yaml.Node) -> list[Entry]:
    """Return the entries of a mapping or list.

    As in PyYAML, the last of duplicate keys wins, a mapping's own keys beat merged ones, and the first of
    several merged mappings beats the later ones.
    """
    if isinstance(node, yaml.SequenceNode):
        return [(i, item, (i,), False) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return []
    found: dict[str, Entry] = {}
    for i, (key, value) in enumerate(node.value):
        if key.tag != MERGE_TAG:
            found[key_text(key)] = (key_text(key), value, (2 * i + 1,), False)
    for i, (key, value) in reversed(list(enumerate(node.value))):
        if key.tag != MERGE_TAG:
            continue
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for j, source in enumerate(sources):
            below = (2 * i + 1, j) if isinstance(value, yaml.SequenceNode) else (2 * i + 1,)
            for name, child, where, _ in entries(source) if isinstance(source, yaml.MappingNode) else []:
                found.setdefault(str(name), (name, child, (*below, *where), True))
    return list(found.values())


def children(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes right below a node, keys included."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def collections(root: yaml.Node) -> Iterator[yaml.Node]:
    """Yield every mapping and list, each once however many aliases point to it."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        yield node
        pending.extend(children(node))


_TAG = "tag:yaml.org,2002:"
DATE_TAG = "date"
"""Tag of a date or a time, which is no text to a trainer."""


class Nodes:
    """Maker of nodes for one text."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]

    def scalar(self, kind: str, value: str, start: int, end: int, style: str | None = None) -> yaml.ScalarNode:
        """Return a scalar: its kind (``int``, ``float``, ``bool``, ``null``, ``str`` or `DATE_TAG`), text and span."""
        tag = kind if kind == DATE_TAG else f"{_TAG}{kind}"
        return yaml.ScalarNode(tag, value, self.mark(start), self.mark(end), style)

    def mapping(self, start: int) -> yaml.MappingNode:
        """Return a mapping that is still empty."""
        return yaml.MappingNode(f"{_TAG}map", [], self.mark(start), self.mark(start), True)

    def sequence(self, start: int) -> yaml.SequenceNode:
        """Return a list that is still empty."""
        return yaml.SequenceNode(f"{_TAG}seq", [], self.mark(start), self.mark(start), True)

    def mark(self, index: int) -> yaml.Mark:
        """Return the mark of a place in the text."""
        line = bisect_right(self._lines, index) - 1
        return yaml.Mark(self._name, index, line, index - self._lines[line], None, 0)

    def error(self, why: str, index: int) -> ConfigError:
        """Return the error for a place in the text that cannot be followed."""
        line = bisect_right(self._lines, index)
        return ConfigError(why, where=f"{self._name}:{line}", remedy="Write this line in a simpler way.")


_JSON_BLANK = re.compile(r"[ \t\r\n]*")
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[-+.\w]+")
_WORDS = {"true": "bool", "false": "bool", "null": "null", "NaN": "float", "Infinity": "float", "-Infinity": "float"}
_DEEPEST = 200


def compose_json(text: str, name: str) -> yaml.Node:
    """Compose the node tree of a JSON text.

    Args:
        text: A text that `json.loads` reads, without a byte order mark.

    Raises:
        ConfigError: It is nested too deeply.
    """
    return _JsonComposer(text, name).value(0)[0]


class _JsonComposer:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._nodes = Nodes(text, name)
        self._depth = 0

    def value(self, index: int) -> tuple[yaml.Node, int]:
        """Return the value behind some blanks, and the index behind it."""
        index = self._skip(index)
        first = self._text[index]
        if first not in "{[":
            return self._scalar(index)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._nodes.error("it is nested too deeply to be read", index)
        found = self._object(index) if first == "{" else self._array(index)
        self._depth -= 1
        return found

    def _object(self, index: int) -> tuple[yaml.Node, int]:
        node = self._nodes.mapping(index)
        index = self._skip(index + 1)
        while self._text[index] != "}":
            key, index = self._scalar(index)
            value, index = self.value(self._skip(index) + 1)  # behind the colon
            node.value.append((key, value))
            index = self._next(index)
        return node, index + 1

    def _array(self, index: int) -> tuple[yaml.Node, int]:
        node = self._nodes.sequence(index)
        index = self._skip(index + 1)
        while self._text[index] != "]":
            value, index = self.value(index)
            node.value.append(value)
            index = self._next(index)
        return node, index + 1

    def _scalar(self, index: int) -> tuple[yaml.ScalarNode, int]:
        if match := _JSON_TEXT.match(self._text, index):
            return self._nodes.scalar("str", json.loads(match[0]), index, match.end(), '"'), match.end()
        match = _WORD.match(self._text, index)
        if match is None:
            raise self._nodes.error("a value was expected here", index)
        kind = _WORDS.get(match[0]) or ("float" if re.search("[.eE]", match[0]) else "int")
        return self._nodes.scalar(kind, match[0], index, match.end()), match.end()

    def _next(self, index: int) -> int:
        """Return the index of what follows a value: the next one, or the closing bracket."""
        index = self._skip(index)
        return self._skip(index + 1) if self._text[index] == "," else index

    def _skip(self, index: int) -> int:
        blank = _JSON_BLANK.match(self._text, index)
        return blank.end() if blank else index


_TOML_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_BLOCK = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2}(?!"))|\'\'\'.*?\'\'\'(?:\'{0,2}(?!\'))', re.DOTALL)
_TOML_TEXT = re.compile(r"""(?P<quote>")(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[ Tt]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[-+]\d\d:\d\d)?)?|\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
)
_INT = re.compile(r"[-+]?(?:0x[0-9A-Fa-f_]+|0o[0-7_]+|0b[01_]+|[0-9_]+)")


def compose_toml(text: str, name: str) -> yaml.Node:
    """Compose the node tree of a TOML text.

    Args:
        text: A text that `tomllib.loads` reads, without a byte order mark.

    Raises:
        ConfigError: Something in it cannot be followed.
    """
    return _TomlComposer(text, name).document()


class _TomlComposer:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._nodes = Nodes(text, name)
        self._root = self._nodes.mapping(0)
        self._held: dict[int, dict[str, yaml.Node]] = {}
        self._depth = 0

    def document(self) -> yaml.MappingNode:
        table, index = self._root, self._skip_lines(0)
        while index < len(self._text):
            if self._text.startswith("[[", index):
                keys, index = self._keys(index + 2)
                table, index = self._next_of_list(keys), self._skip(index) + 2
            elif self._text[index] == "[":
                keys, index = self._keys(index + 1)
                table, index = self._table(self._root, keys), self._skip(index) + 1
            else:
                index = self._pair(table, index)
            index = self._skip_lines(index)
        return self._root

    def _pair(self, table: yaml.MappingNode, index: int) -> int:
        keys, index = self._keys(index)
        value, index = self._value(self._skip(index) + 1)  # behind the =
        self._hold(self._table(table, keys[:-1]), keys[-1], value)
        return index

    def _keys(self, index: int) -> tuple[list[yaml.ScalarNode], int]:
        """Return the parts of a dotted key, and the index behind it."""
        keys: list[yaml.ScalarNode] = []
        while not keys or self._text[index : index + 1] == ".":
            index = self._skip(index + bool(keys))
            match = _KEY.match(self._text, index)
            if match is None:
                raise self._nodes.error("a key was expected here", index)
            key = _read(match[0]) if match[0][0] in "\"'" else match[0]
            keys.append(self._nodes.scalar("str", key, index, match.end()))
            index = self._skip(match.end())
        return keys, index

    def _table(self, above: yaml.MappingNode, keys: list[yaml.ScalarNode]) -> yaml.MappingNode:
        """Return the table below another one, made if it is not there; of a list of tables the last one."""
        for key in keys:
            found = self._held.get(id(above), {}).get(key.value)
            if isinstance(found, yaml.SequenceNode) and found.value:
                found = found.value[-1]
            if found is None:
                found = self._nodes.mapping(key.start_mark.index)
                self._hold(above, key, found)
            if not isinstance(found, yaml.MappingNode):
                raise self._nodes.error(f"{key.value} is no table", key.start_mark.index)
            above = found
        return above

    def _next_of_list(self, keys: list[yaml.ScalarNode]) -> yaml.MappingNode:
        above, key = self._table(self._root, keys[:-1]), keys[-1]
        tables = self._held.get(id(above), {}).get(key.value)
        if tables is None:
            tables = self._nodes.sequence(key.start_mark.index)
            self._hold(above, key, tables)
        if not isinstance(tables, yaml.SequenceNode):
            raise self._nodes.error(f"{key.value} is no list of tables", key.start_mark.index)
        tables.value.append(self._nodes.mapping(key.start_mark.index))
        return tables.value[-1]  # type: ignore[no-any-return]  # the mapping that was just made

    def _hold(self, table: yaml.MappingNode, key: yaml.ScalarNode, value: yaml.Node) -> None:
        table.value.append((key, value))
        self._held.setdefault(id(table), {})[key.value] = value

    def _value(self, index: int) -> tuple[yaml.Node, int]:
        index = self._skip(index)
        first = self._text[index : index + 1]
        if not first or first not in "[{":
            return self._scalar(index)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._nodes.error("it is nested too deeply to be read", index)
        found = self._array(index) if first == "[" else self._inline_table(index)
        self._depth -= 1
        return found

    def _array(self, index: int) -> tuple[yaml.Node, int]:
        node = self._nodes.sequence(index)
        index = self._skip_lines(index + 1)
        while not self._text.startswith("]", index):
            value, index = self._value(index)
            node.value.append(value)
            index = self._next(index)
        return node, index + 1

    def _inline_table(self, index: int) -> tuple[yaml.Node, int]:
        node = self._nodes.mapping(index)
        index = self._skip_lines(index + 1)
        while not self._text.startswith("}", index):
            index = self._next(self._pair(node, index))
        return node, index + 1

    def _scalar(self, index: int) -> tuple[yaml.Node, int]:
        if match := _BLOCK.match(self._text, index):
            return self._nodes.scalar("str", _read(match[0]), index, match.end(), match[0][:3]), match.end()
        if match := _TOML_TEXT.match(self._text, index):
            return self._nodes.scalar("str", _read(match[0]), index, match.end(), match[0][0]), match.end()
        if match := _DATE.match(self._text, index):
            return self._nodes.scalar(DATE_TAG, match[0], index, match.end()), match.end()
        match = _WORD.match(self._text, index)
        if match is None:
            raise self._nodes.error("a value was expected here", index)
        is_int = _INT.fullmatch(match[0])
        kind = "bool" if match[0] in ("true", "false") else "int" if is_int else "float"
        return self._nodes.scalar(kind, match[0], index, match.end()), match.end()

    def _next(self, index: int) -> int:
        """Return the index of what follows a value in brackets: the next one, or the closing bracket."""
        index = self._skip_lines(index)
        return self._skip_lines(index + 1) if self._text.startswith(",", index) else index

    def _skip(self, index: int) -> int:
        blank = _TOML_BLANK.match(self._text, index)
        return blank.end() if blank else index

    def _skip_lines(self, index: int) -> int:
        blank = _BLANK_LINES.match(self._text, index)
        return blank.end() if blank else index


def _read(written: str) -> str:
    """Return the text that a quoted one means."""
    return str(tomllib.loads(f"x = {written}")["x"])
