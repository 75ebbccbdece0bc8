"""Node trees as PyYAML composes them, built by our parsers of other syntaxes: they have the same marks."""

from bisect import bisect_right

import yaml

from autotune.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
DATE_TAG = "date"
"""Tag of a date or a time, which is no text to a trainer."""


class Nodes:
    """Maker of nodes for one text.

    Args:
        text: The text.
        name: The file's name, for errors.
    """

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
