"""Parser of JSON that says where in the text every value stands; texts that `json.loads` refuses are not for it."""

import json
import re

import yaml

from autotune.settings.text.nodes import Nodes

_BLANK = re.compile(r"[ \t\r\n]*")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[-+.\w]+")
_WORDS = {"true": "bool", "false": "bool", "null": "null", "NaN": "float", "Infinity": "float", "-Infinity": "float"}
_DEEPEST = 200


def compose_json(text: str, name: str) -> yaml.Node:
    """Compose the node tree of a JSON text.

    Args:
        text: A text that `json.loads` reads, without a byte order mark.
        name: The file's name, for errors.

    Raises:
        ConfigError: It is nested too deeply.
    """
    return _Composer(text, name).value(0)[0]


class _Composer:
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
        if match := _TEXT.match(self._text, index):
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
        blank = _BLANK.match(self._text, index)
        return blank.end() if blank else index
