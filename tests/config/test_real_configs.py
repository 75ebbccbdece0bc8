"""Real training configs of other projects: every edit is a one-line diff that both parsers confirm, or refused."""

import re

import pytest
import ruamel.yaml
import yaml

from autotune.config.document import Document
from autotune.config.splice import edit_yaml
from autotune.errors import CannotEditYaml, ConfigError
from tests.conftest import SHARED

CONFIGS = sorted((SHARED / "yaml").glob("*.y*ml*"))
EDITS_PER_FILE = 2
KINDS = {bool: lambda text: text.lower() in ("true", "yes", "on"), int: int, float: float, str: str}


def scalars(node, path=()):
    """Yield the path of each scalar below a node, with what a parser read there: nothing is constructed."""
    if isinstance(node.value, str):
        yield path, (str(node.tag).rpartition(":")[2], node.value)
    for number, child in enumerate(() if isinstance(node.value, str) else node.value):
        key, value = child if isinstance(child, tuple) else (None, child)
        yield from scalars(value, (*path, key.value if key and isinstance(key.value, str) else number))


def read(text):
    """Return the scalars of a text as PyYAML reads it, and as ruamel.yaml does."""
    trees = yaml.compose(text, yaml.CSafeLoader), ruamel.yaml.YAML(pure=True).compose(text)
    return [list(scalars(tree)) for tree in trees]


def other_value(value):
    """A value of the same kind that is not there yet."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else value / 7 + 0.25
    return 7 if value is None else f"{value}-tuned"


def edit_and_confirm(text, old, leaf, value):
    """Edit one value and check the result with the parsers, unless the edit is refused."""
    if leaf.why_fixed is not None:
        with pytest.raises(CannotEditYaml, match=re.escape(leaf.why_fixed)):
            edit_yaml(text, {leaf.path: value})
        return
    new = edit_yaml(text, {leaf.path: value})
    assert sum(a != b for a, b in zip(text.split("\n"), new.split("\n"), strict=True)) == 1
    for before, after in zip(old, read(new), strict=True):
        ((was, now),) = (pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])
        assert was[0] == now[0] == tuple(int(key) if isinstance(key, int) else str(key) for key in leaf.path)
        kind, word = now[1]
        assert (kind, KINDS[type(value)](word)) == (type(value).__name__, value)


@pytest.mark.skipif(not CONFIGS, reason="the collection of real configs is not here")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name[:3])
def test_every_edit_is_exact_or_refused(config):
    """No real config comes out of an edit with anything else changed; a present value changes nothing."""
    text = config.read_bytes().decode()
    try:
        document = Document.read(config)
    except ConfigError:
        document = None
    if document is None:
        with pytest.raises(CannotEditYaml):
            edit_yaml(text, {"batch_size": 8})
        return
    assert edit_yaml(text, {leaf.path: leaf.reading_1_1 for leaf in document.leaves}) == text
    old, step = read(text), max(1, len(document.leaves) // EDITS_PER_FILE)
    for leaf in document.leaves[::step][:EDITS_PER_FILE]:
        edit_and_confirm(text, old, leaf, other_value(leaf.value))
