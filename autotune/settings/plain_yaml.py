"""Small YAML files of our own, read with PyYAML alone into values that know their lines."""

from dataclasses import dataclass
from typing import Any

from autotune.errors import ConfigError
from autotune.records import Scalar

_DEEPEST = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Value of a file, with its place.

    Attributes:
        value: A scalar, a list of entries, or entries by key.
        text: A scalar as it is written, without quotes.
        line: Its line, counted from 1.
    """

    value: "Scalar | list[Entry] | dict[str, Entry]"
    text: str
    line: int


def read_plain_yaml(text: str, name: str) -> Entry | None:
    """Read a file.

    Args:
        text: Its text.
        name: Its name, for messages.

    Returns:
        The value at its top; None if the file is empty.

    Raises:
        ConfigError: It is no YAML, repeats a key, or uses aliases or tags.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None else _entry(root, name, 0, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise _wrong(f"it is no YAML: {error.problem or error.context}", place) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise _wrong(f"it is no YAML: {str(error).splitlines()[0]}", name) from error
    except RecursionError as error:
        raise _wrong("it is nested too deeply", name) from error


def _entry(node: Any, name: str, depth: int, seen: set[int]) -> Entry:
    import yaml

    line = int(node.start_mark.line) + 1
    place = f"{name}:{line}"
    if depth > _DEEPEST:
        raise _wrong("it is nested too deeply", place)
    if id(node) in seen:
        raise _wrong("an alias repeats a value", place)
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, ArithmeticError) as error:
            raise _wrong(f"{node.value[:60]!r} cannot be read as {node.tag.rpartition(':')[2]}", place) from error
        if not isinstance(value, bool | int | float | str | None):
            value = node.value  # a date, which nothing of ours is
        return Entry(value=value, text=str(node.value), line=line)
    if isinstance(node, yaml.SequenceNode):
        return Entry(value=[_entry(item, name, depth + 1, seen) for item in node.value], text="", line=line)
    entries: dict[str, Entry] = {}
    for key, value_node in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong("a key is no single word", place)
        if key.value in entries:
            raise _wrong(f"the key {key.value} is there twice", f"{name}:{key.start_mark.line + 1}")
        entries[key.value] = _entry(value_node, name, depth + 1, seen)
    return Entry(value=entries, text="", line=line)


def _wrong(message: str, place: str) -> ConfigError:
    return ConfigError(message, where=place, remedy="Write it out as plain YAML: keys with values, lists in brackets.")
