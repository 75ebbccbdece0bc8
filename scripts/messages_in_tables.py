"""Messages in the tables of the package, for Babel: ``[extractors]`` of ``scripts/messages.cfg`` names this."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

_SAID = frozenset(("meaning", "question", "sentence", "remedy"))  # keys whose texts people read


def extract(
    file: BinaryIO, _keywords: Sequence[str], _tags: Sequence[str], options: Mapping[str, str]
) -> Iterator[tuple[int, str, str, list[str]]]:
    """Yield the messages of a table as Babel wants them (line, function, text, comments), whatever the options."""
    yield from ((1, "_", text, []) for text in _texts(tomllib.load(file)))


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key in _SAID)
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _texts(inner)
