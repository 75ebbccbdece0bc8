"""Several config files read like one: the first one's keys as they are, those of each further one below its name."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from autotune.config.document import Document, Leaf
from autotune.config.keys import KeyPath, dotted
from autotune.errors import CannotEditYaml, ConfigError


class JoinedDocument(Document):
    """First config with further ones below their prefixes.

    It is for reading: text, name and syntax are the first one's, and each file is spliced by itself.

    Args:
        first: The config that `text` and `name` are of.
        further: The other ones by prefix.
    """

    def __init__(self, first: Document, further: Mapping[str, Document]) -> None:
        self.name, self.text, self.syntax = first.name, first.text, first.syntax
        self.first = first
        self.further = further

    @cached_property
    def data(self) -> dict[str, Any]:
        return {**self.first.data, **{prefix: one.data for prefix, one in self.further.items()}}

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        below = (_below(prefix, leaf) for prefix, one in self.further.items() for leaf in one.leaves)
        return (*self.first.leaves, *below)

    def leaf(self, path: KeyPath) -> Leaf:
        prefix, inside = self.split(path)
        if not inside:
            raise CannotEditYaml(dotted(path), "this is a whole file", line=1, remedy="Name a value inside it.")
        return _below(prefix, self.further[prefix].leaf(inside)) if prefix else self.first.leaf(inside)

    def line(self, path: KeyPath) -> int | None:
        """See `Document.line`; the line is that of the file which holds the value."""
        prefix, inside = self.split(path)
        return (self.further[prefix] if prefix else self.first).line(inside) if inside else 1

    def __contains__(self, path: KeyPath) -> bool:
        prefix, inside = self.split(path)
        return not inside or inside in (self.further[prefix] if prefix else self.first)

    def check_by_second_parser(self) -> None:
        for one in (self.first, *self.further.values()):
            one.check_by_second_parser()

    def split(self, path: KeyPath) -> tuple[str, KeyPath]:
        """Return the prefix of the file that a path leads into, empty for the first one, and the path in there."""
        for prefix in self.further:
            if isinstance(path, str):
                if path == prefix or path.startswith(f"{prefix}."):
                    return prefix, path[len(prefix) + 1 :]
            elif path and path[0] == prefix:
                return prefix, path[1:]
        return "", path


def check_prefix(prefix: str, first: Document, others: Mapping[str, Document], where: str) -> None:
    """Raise an error if a file's name cannot stand in front of its keys.

    Raises:
        ConfigError: It is a key of the first config, another file has it, or a placeholder could not name it.
    """
    why = None
    if prefix in others:
        why = "two files have that name"
    elif prefix in first:
        why = f"{first.name} has a key of that name in line {first.line(prefix)}"
    elif prefix in ("autotune", "config", "python"):
        why = "it means something else in a command, or in the config"
    elif not re.fullmatch(r"\w[\w.-]*", prefix):
        why = "it is no word of letters, digits, points and dashes"
    if why is not None:
        remedy = "Rename the file, or give it by a link of another name (ln -s)."
        raise ConfigError(f"the keys of this file would be called {prefix}.…, but {why}", where=where, remedy=remedy)


def _below(prefix: str, leaf: Leaf) -> Leaf:
    return replace(leaf, path=(prefix, *leaf.path))
