"""Real training configs of other projects: every edit is a one-line diff that both parsers confirm, or refused.

``python -m pytest tests/config/test_real_configs.py -s`` prints the counts.
"""

import copy
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import ruamel.yaml
import yaml

from autotune.config.document import Document
from autotune.config.splice import edit_yaml
from autotune.errors import CannotEditYaml, ConfigError
from tests.conftest import SHARED

CONFIGS = sorted((SHARED / "yaml").glob("*.y*ml*"))
EDITS_PER_FILE = 4


class Opaque:
    """Value of a custom tag for a reader that does not construct it."""

    def __init__(self, tag, value):
        self.content = (tag, value)

    def __repr__(self):
        return f"!{self.content}"


class Reader(yaml.SafeLoader):
    """PyYAML with custom tags kept as opaque values."""


def _opaque(loader, suffix, node):
    if isinstance(node, yaml.ScalarNode):
        return Opaque(suffix, node.value)
    if isinstance(node, yaml.SequenceNode):
        return Opaque(suffix, loader.construct_sequence(node, deep=True))
    return Opaque(suffix, loader.construct_mapping(node, deep=True))


Reader.add_multi_constructor("", _opaque)


def read_1_1(text):
    """The config as PyYAML reads it."""
    return yaml.load(text, Loader=Reader)


def read_1_2(text):
    """The config as ruamel.yaml reads it, custom tags and comments and all."""
    return ruamel.yaml.YAML(pure=True).load(text)


def place(tree, path):
    """The value at a path, custom tags seen through."""
    for key in path:
        while isinstance(tree, Opaque):
            tree = tree.content[1]
        tree = tree[key]
    return tree


def without(tree, path):
    """The tree with a mark in place of one value."""
    tree = copy.deepcopy(tree)
    holder = place(tree, path[:-1])
    while isinstance(holder, Opaque):
        holder = holder.content[1]
    holder[path[-1]] = "<edited>"
    return tree


def other_value(value):
    """A value of the same kind that is not there yet."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 7 + 0.25
    return 7 if value is None else f"{value}-tuned"


def keys_as_read(tree, path):
    """A path whose keys are what the parser made of them, e.g. the number in ``1: x``."""
    read = []
    for key in path:
        while isinstance(tree, Opaque):
            tree = tree.content[1]
        if isinstance(tree, dict):
            key = next(k for k in tree if str(k) == str(key))
        read.append(key)
        tree = tree[key]
    return tuple(read)


def edit_and_confirm(text, path, value):
    """Edit one value and check the result with parsers of the test's own; return the outcome."""
    refusal = Document.parse(text).leaf(path).why_fixed
    if refusal is not None:
        with pytest.raises(CannotEditYaml, match=re.escape(refusal)):
            edit_yaml(text, {path: value})
        return f"refused: {refusal}"
    new = edit_yaml(text, {path: value})
    before, after = text.split("\n"), new.split("\n")
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    for read in (read_1_1, read_1_2):
        old_tree, new_tree = read(text), read(new)
        where = keys_as_read(old_tree, path)
        assert place(new_tree, where) == value
        new_rest, old_rest = (
            # ruamel's tagged values have no ==, and in its older versions an address in place of their text
            re.sub(" at 0x[0-9a-f]+", "", repr(without(tree, where)))
            for tree in (new_tree, old_tree)
        )
        assert new_rest == old_rest
    return "one line, confirmed by both parsers"


@pytest.mark.skipif(not CONFIGS, reason="the collection of real configs is not here")
def test_every_edit_is_exact_or_refused():
    """No real config ever comes out of an edit with anything else changed."""
    outcomes, refused_files = Counter(), []
    for config in CONFIGS:
        text = config.read_bytes().decode()
        try:
            leaves = Document.read(config).leaves
        except ConfigError as error:
            with pytest.raises(CannotEditYaml):
                edit_yaml(text, {"batch_size": 8})
            refused_files.append(f"{config.name}: {error.message}")
            continue
        step = max(1, len(leaves) // EDITS_PER_FILE)
        for leaf in leaves[::step][:EDITS_PER_FILE]:
            outcomes[edit_and_confirm(text, leaf.path, other_value(leaf.value))] += 1
    report = [f"{len(CONFIGS)} real configs, {len(refused_files)} refused as a whole, {outcomes.total()} edits:"]
    report += [f"{count:6}  {outcome}" for outcome, count in outcomes.most_common()]
    report += [f"  file  {line}" for line in refused_files]
    sys.stdout.write("\n" + "\n".join(report) + "\n")
    assert outcomes["one line, confirmed by both parsers"] > 60


@pytest.mark.skipif(not CONFIGS, reason="the collection of real configs is not here")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name[:3])
def test_nothing_to_change_changes_nothing(config: Path):
    """Writing the present value into a real config returns the very same text."""
    text = config.read_bytes().decode()
    try:
        document = Document.read(config)
    except ConfigError:
        pytest.skip("no single YAML mapping")
    assert edit_yaml(text, {leaf.path: leaf.reading_1_1 for leaf in document.leaves}) == text
