"""Insertion of a section at the end of a config, everything else byte for byte."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from autotune.config.document import Document
from autotune.config.splice import with_section, without_key
from autotune.errors import ConfigError

LINES = ["autotune:  # ours", "  # a comment", "  command: x"]


def append(text):
    """Return the text with the section."""
    return with_section(Document.parse(text, "config.yaml"), "autotune", LINES)


@pytest.mark.parametrize(
    ("text", "inserted"),
    [
        ("a: 1\n", "\nautotune:  # ours\n  # a comment\n  command: x\n"),
        ("a: 1", "\n\nautotune:  # ours\n  # a comment\n  command: x"),
        ("a: 1\r\nb:\r\n", "\r\nautotune:  # ours\r\n  # a comment\r\n  command: x\r\n"),
        ("\ufeff# top\na: {b: [1,\n  2]}\n# end\n\n\n", "\nautotune:  # ours\n  # a comment\n  command: x\n"),
        ("  a: 1\n  b: 2\n", "\n  autotune:  # ours\n    # a comment\n    command: x\n"),
        ("a: |+\n  text\n\n", "autotune:  # ours\n  # a comment\n  command: x\n"),
    ],
)
def test_the_old_text_stays_and_the_section_looks_like_it(text, inserted):
    """Indentation, line ends and a missing final newline are the file's own."""
    new = append(text)
    assert new.inserted == inserted
    assert new.text == text + inserted
    assert yaml.safe_load(new.text) == {**yaml.safe_load(text), "autotune": {"command": "x"}}
    assert YAML(typ="safe").load(new.text)["autotune"] == {"command": "x"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{a: 1}\n", "braces"),
        ("a: |\n  no final newline", "change the meaning"),
        ("a: 1  # {% if gpu %}\n", "template"),
    ],
)
def test_where_it_cannot_stand_is_said(text, why):
    """With the way out."""
    with pytest.raises(ConfigError, match=why) as caught:
        append(text)
    assert (caught.value.where, bool(caught.value.remedy)) == ("config.yaml", True)


SCALARS = ("1", "x", "'q'", '"d"', "|\n  block\n", ">-\n  folded\n", "[1, 2]", "{b: 1}", "", "~", "&x 1")
VALUES = st.lists(st.sampled_from(SCALARS), min_size=1, max_size=5)


@given(VALUES, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "# end", "\n\n", "  "]), st.booleans())
def test_any_config_keeps_all_its_characters(values, newline, end, has_newline):
    """Whatever stands last: the old text is what is left without the section, or the change is refused."""
    text = "".join(f"k{i}: {value}\n" for i, value in enumerate(values)) + end
    text = (f"{text.rstrip()}\n" if has_newline else text.rstrip()).replace("\n", newline)
    try:
        new = append(text)
    except ConfigError:
        return
    assert new.text.replace(new.inserted, "") == text
    assert Document.parse(new.text).data == {**Document.parse(text).data, "autotune": {"command": "x"}}
    assert without_key(Document.parse(new.text), "autotune").text.startswith(text)


PIECES = ("a: 1\n", "b: |\n  x\n\n", "c:\n  d: [1,\n   2]  # e\n", "# f\n", "\n", "g: 'h\n  # i'\n")


@given(
    st.lists(st.sampled_from(PIECES), unique=True),
    st.lists(st.sampled_from(["j: 1\n", "# k\n", "\n", "l: >\n  m\n", "n: *x\n"]), unique=True),
    st.sampled_from(["k: word\n", "k: |\n    text\n    # no comment\n", "k: *x\n", "k: {m:\n    1}  # l\n"]),
)
def test_a_section_is_cut_out_where_its_content_ends(before, after, last):
    """Its own lines go, with the blank ones behind a block of text; other comments and blank lines stay."""
    head, tail = "x: &x 0\n" + "".join(before), "\n" + "".join(after)
    document = Document.parse(f"{head}autotune:\n  # x\n  y: [1, 2]  # z\n  {last}{tail}")
    assert without_key(document, "autotune").text == head + (tail.lstrip("\n") if last.startswith("k: |") else tail)
