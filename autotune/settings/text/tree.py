"""Traversal of PyYAML's node trees: entries of mappings with duplicate and merge keys resolved."""

from collections.abc import Iterator

import yaml

from autotune.settings.text.parsers import MERGE_TAG

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
