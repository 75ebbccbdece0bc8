"""Scanners with fast paths: the same trees, marks and errors as from the original parsers."""

import gc
from pathlib import Path

import pytest
import ruamel.yaml
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config.document import Document
from autotune.config.parsers import Scanner1_1, content_end, no_garbage, yaml_1_2
from tests.conftest import SHARED

CONFIGS = sorted((SHARED / "yaml").glob("*.y*ml*"))
PIECES = (
    *(
        "a: 1\n",
        "b:\n",
        "  c: word word\n",
        "- x\n",
        "  - y: [1, 2]\n",
        "{d: 'e f'}\n",
        "[g,\n",
        "h]\n",
        "k: |\n",
        "  block\n",
    ),
    *(
        "# comment\n",
        "  # indented\n",
        "#\n",
        "\n",
        "   \n",
        "\r\n",
        "# windows\r\n",
        "# old\r",
        "\t# tab\n",
        " # é \u2028 x\n",
    ),
    *(
        "# next\x85",
        "l: m # n\n",
        "'o\n",
        "  p'\n",
        '"q\\\n',
        '  r"\n',
        "? s\n",
        ": t\n",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
    ),
    *(
        "&u v",
        "*u\n",
        "!!int 5\n",
        "!w x\n",
        "\ufeff",
        "\ufeff# bom\n",
        "y",
        ": ",
        "#z",
        " #",
        "  ",
        "\u2029",
        "\x85",
        "# end",
    ),
)


def tokens_1_1(text, loader):
    """Return every token of PyYAML with its marks, up to the error, if there is one."""
    found = []
    try:
        for token in yaml.scan(text, Loader=loader):
            marks = [(mark.index, mark.line, mark.column) for mark in (token.start_mark, token.end_mark)]
            found.append((type(token).__name__, getattr(token, "value", None), marks))
    except yaml.YAMLError as error:
        found.append(str(error))
    return found


def tree_1_2(text, loader):
    """Return every node of ruamel.yaml with its marks, or the error."""
    try:
        root = loader.compose(text)
    except ruamel.yaml.error.YAMLError as error:
        return str(error)
    except Exception as error:  # what it runs into by itself, it has to run into again
        return type(error).__name__
    found, pending, seen = [], [root], set()
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        marks = [(mark.index, mark.line, mark.column) for mark in (node.start_mark, node.end_mark)]
        found.append((node.id, str(node.tag), node.anchor, node.value if node.id == "scalar" else None, marks))
        if node.id == "mapping":
            pending += [part for pair in node.value for part in pair]
        elif node.id == "sequence":
            pending += node.value
    return found


def assert_the_same(text):
    """Compares both scanners with those of the parsers."""
    assert tokens_1_1(text, Scanner1_1) == tokens_1_1(text, yaml.SafeLoader)
    assert tree_1_2(text, yaml_1_2()) == tree_1_2(text, ruamel.yaml.YAML(typ="safe", pure=True))


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_texts_of_all_kinds(text):
    """Comments and blank lines of every form between things of every kind."""
    assert_the_same(text)


@settings(max_examples=200)
@given(st.text("ab:-#'\"[]{},&*!|>? \t\n\r\x85\u2028\ufeff0", max_size=30))
def test_texts_without_sense(text):
    """Errors come at the same place."""
    assert_the_same(text)


@pytest.mark.skipif(not CONFIGS, reason="the collection of real configs is not here")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name[:3])
def test_real_configs(config: Path):
    """With the comments that people write."""
    assert_the_same(config.read_bytes().decode())


def test_comments_take_no_steps():
    """A sequence of comment lines is skipped at once, however long it is."""
    steps = 0

    class Counting(Scanner1_1):
        def peek(self, index=0):
            nonlocal steps
            steps += 1
            return super().peek(index)

    yaml.compose("# a comment of some length\n" * 10_000 + "a: 1\n", Loader=Counting)
    assert steps < 200


def test_a_text_is_parsed_once(monkeypatch):
    """Another document of the same text takes the same tree."""
    text = "a: 1\nb: [2, 3]\n"
    assert Document.parse(text, "one").root is Document.parse(text, "other").root
    assert Document.parse(text).root_1_2 is Document.parse(text).root_1_2


@given(
    st.lists(
        st.sampled_from(["a: 1\n", "b: |\n  x\n\n", "c:\n  d: [1,\n   2]  # e\n", "# f\n", "\n", "g: 'h\n  i'\n"])
    ),
    st.lists(st.sampled_from(["j: 1\n", "# k\n", "\n", "l: >\n  m\n"])),
)
def test_where_the_content_of_a_section_ends(before, after):
    """It is found from the section on as it is from the beginning of the text."""
    head, section = "".join(before), "autotune:\n  # x\n  y: [1, 2]  # z\n  k: word\n"
    text = f"{head}{section}\n{''.join(after)}"
    later = [len(head) + len(section) + 1 + place for place in ("".join(after).find(k) for k in "jl") if place >= 0]
    stop = min(later, default=None)
    assert content_end(text, len(head), stop) == len(head) + section.index("word") + 4


def test_looking_for_garbage_goes_on():
    """Also after an error; and who turned it off before keeps it off."""
    with pytest.raises(ValueError, match="x"), no_garbage():
        raise ValueError("x")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
