"""Walking PyYAML's node trees: what a mapping holds once duplicate and merge keys are sorted out."""

from collections.abc import Iterator

import yaml

from autotune.settings.text.parsers import MERGE_TAG

Entry = tuple[str | int, yaml.Node, tuple[int, ...], bool]
"""One thing that a mapping or list holds: key or position, node, place below, whether a merge key brought it."""


def kind(node: yaml.Node) -> str:
    """What a node is, for messages."""
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def key_text(node: yaml.Node) -> str:
    """A key as it is written."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def entries(node: yaml.Node) -> list[Entry]:
    """What a mapping or list holds.

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
    """The nodes right below a node, keys included."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def collections(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every mapping and list, each once however many aliases point to it."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        yield node
        pending.extend(children(node))
