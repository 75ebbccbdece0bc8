"""Changing values in a YAML text, adding a section and taking it out: only that changes, or nothing does."""

import pytest
import ruamel.yaml
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from autotune.config.document import Document
from autotune.config.splice import edit_yaml, with_section, without_key
from autotune.errors import CannotEditYaml, ConfigError


def read_1_2(text):
    """Read a text as a trainer that uses ruamel.yaml does."""
    return ruamel.yaml.YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("a: 16  # why", 32, "a: 32  # why"),
        ("a: 16", 32.0, "a: 32"),
        ("a: 1.0", 2, "a: 2.0"),
        ("a: 1e-4", 0.0003, "a: 3.0e-04"),
        ("a: 1e-4", 0.0001, "a: 1.0e-04"),
        ("a: 1.0E3", 25000.0, "a: 2.5e+04"),
        ("a: True", False, "a: False"),
        ("a: NO", True, "a: YES"),
        ("a: on", False, "a: off"),
        ("a: 1", True, "a: true"),
        ("a: GPU", True, "a: true"),
        ("a: 'ON'", False, "a: off"),
        ("a: null", 3, "a: 3"),
        ("a: 3", None, "a: null"),
        ("a:  # nothing yet", 3, "a: 3  # nothing yet"),
        ("a: 'x'", "it's", "a: 'it''s'"),
        ('a: "x"', 'say "hi"\n', 'a: "say \\"hi\\"\\x0a"'),
        ("a: gpu", "/gpu:0", "a: '/gpu:0'"),
        ("a: gpu", "no", "a: 'no'"),
        ("a: gpu", "1e5", "a: '1e5'"),
        ("a: gpu", "._1", "a: '._1'"),
        ("a: gpu", "._", "a: '._'"),
        ("a: gpu", ".5e3", "a: .5e3"),
        ("a: gpu", "a # b", "a: 'a # b'"),
        ("a: 'x'", 3, "a: 3"),
        ("a: !!float 3", 4, "a: !!float 4.0"),
        ("a: &anchor 3", 4, "a: &anchor 4"),
        ("{a: 1, b: 2}", 3, "{a: 3, b: 2}"),
        ("\ufeffa: 1\r\nb: 2\r\n", 3, "\ufeffa: 3\r\nb: 2\r\n"),
        ("---\na: 1\n...\n", 3, "---\na: 3\n...\n"),
    ],
)
def test_only_the_value_changes(old, value, new):
    """The new value is written in the manner of the old one; all other characters stay."""
    assert edit_yaml(old, {"a": value}) == new


@pytest.mark.parametrize(
    ("text", "value"),
    [("a: 0x10", 16), ("a: 1_000", 1000), ("a: 5e-1", "5e-1"), ("a: yes", True), ("a: ~", None), ("a: 2.0", 2)],
)
def test_a_value_that_is_there_already_is_not_rewritten(text, value):
    """Writing the present value is no edit, however it is spelled."""
    assert edit_yaml(text, {"a": value}) is text


def test_custom_tags_elsewhere_are_neither_run_nor_in_the_way():
    """A hyperpyyaml file can be edited, though nobody but its trainer can load it."""
    text = "seed: !apply:os.system [touch pwned]\nbatch: 8\nnet: !new:torch.Net\n  size: !ref <batch>\n"
    assert edit_yaml(text, {"batch": 16}) == text.replace("8", "16")


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ("a: &x 1\nb: *x", "b", "alias"),
        ("a: &x 1\nb: *x", "a", "alias"),
        ("a: &x {c: 1}\nb: *x", "a.c", "alias"),
        ("d: &d {a: 1}\nb:\n  <<: *d", "b.a", "merge key"),
        ("d: &d {a: 1}\nb:\n  <<: *d", "d.a", "alias"),
        ("a: |\n  text", "a", "block"),
        ("a: 'one\n  two'", "a", "several lines"),
        ("a: ${oc.env:A}", "a", "template"),
        ("a: {{ b }}", "a", "template"),
        ("a: !ref <b>", "a", "!ref"),
        ("a: !!int 3", "a", "could not be read"),
        ("a: {b: 1}", "a", "mapping"),
        ("a: [1]", "a", "list"),
        ("a: [1]", "a.1", "no such key"),
        ("a: !!set {b: , c: }", "a.b", "it is in a set"),
        ("{a, b}", "a", "meaning of other lines"),
        ("a: 1\na: 2", "a", r"a \(line 1\) and a \(line 2\) are the same key"),
        ("on: 1\nyes: 2", "on", r"on \(line 1\) and yes \(line 2\)"),
        ("b: {on: 1}\nd:\n  true: 2\n  True: {c: 3}", "d.True.c", r"true \(line 3\) and True \(line 4\)"),
        ("1: 1\n'1': 2", "1", r"1 \(line 1\) and 1 \(line 2\)"),
        ("", "a", "empty"),
    ],
)
def test_what_cannot_be_kept_is_refused(text, path, why):
    """Rather no edit than one that changes, or may change, something else."""
    with pytest.raises(CannotEditYaml, match=why) as caught:
        edit_yaml(text, {path: 2.5})
    assert caught.value.path == path
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        *(("", None, "Pass the config that the trainer reads."), ("a: 1\n\tb: 2", 2, "Indent with spaces")),
        *(("a: 1\nb: {{ c }}", 2, "Render the template"), ("- 1", 1, "a config whose top level is a mapping")),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_what_mends_it(text, line, remedy):
    """The line and the remedy are those of the fault in the text, not of the value that was to be changed."""
    with pytest.raises(CannotEditYaml) as caught:
        edit_yaml(text, {"a": 2})
    assert caught.value.line == line
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("text", ["on: {a: 1}\nb: 1\nyes: 2", "d: &d {b: 2}\nc:\n  <<: *d\n  b: 1\n'b': 1"])
def test_keys_alike_elsewhere_are_not_in_the_way(text):
    """Nor is a key that a merge key brings in as well: the mapping's own counts."""
    path = "c.b" if "c:" in text else "b"
    assert edit_yaml(text, {path: 7}) == text.replace("b: 1", "b: 7", 1)


NAMES = st.text("abcdefgxyzäß日_-. ", min_size=1, max_size=6).map(lambda s: f"k{s}".rstrip(" ."))
SCALARS = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=12),
    st.sampled_from(["", "no", "1e-4", "~", "- x", "a: b", "x # y", "{a}", "0o7", "12:30:45", "<<", "=", "null", "'"]),
)
SPELLINGS = (
    "16|0.5|1e-4|1.5E+3|0x1F|017|1_000|12:30:45|true|False|ON|no|null|~|word|two words|'it''s'|\"q\\\"x\"|'日本'"
    "|ünïcode|2001-01-01|.inf|!!str 5|!!float 3|&anchor 7|a-b/c.d|'{x}'"
)
WRITTEN = st.sampled_from(SPELLINGS.split("|"))
COMMENTS = st.sampled_from(["", "", "  # why", " #", "   "])
GAPS = st.sampled_from(["", "", "# note: {a: [b\n", "\n\n", "   \n", "#\n"])


@st.composite
def documents(draw):
    """A YAML text like people write them, and the paths of its values."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines, paths = [], []
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    for number, name in enumerate(names):
        lines.append(draw(GAPS))
        pad = " " * draw(st.integers(1, 5))
        inner = [f"i{i}" for i in range(draw(st.integers(1, 3)))]
        shape = draw(st.sampled_from(["scalar", "block", "flow", "list", "flow list"]))
        words = [draw(WRITTEN).replace("&anchor", f"&n{number}{i}") for i in range(len(inner))]
        if shape == "scalar":
            lines.append(f"{name}:{pad}{words[0]}{draw(COMMENTS)}\n")
            paths.append((name,))
            continue
        signs = ["-  " if shape == "list" else "" if shape == "flow list" else f"{key}: " for key in inner]
        paths += [(name, i if "list" in shape else key) for i, key in enumerate(inner)]
        items = [f"{sign}{word}" for sign, word in zip(signs, words, strict=True)]
        if shape in ("block", "list"):
            lines.append(f"{name}:{draw(COMMENTS)}\n")
            lines += [f"{pad}{item}{draw(COMMENTS)}\n{draw(GAPS)}" for item in items]
        else:
            opening, closing = "{}" if shape == "flow" else "[]"
            lines.append(f"{name}: {opening}{pad}{', '.join(items)} {closing}{draw(COMMENTS)}\n")
    text = draw(st.sampled_from(["", "\ufeff"])) + "".join(lines).replace("\n", end)
    if draw(st.booleans()):
        text = text.removesuffix(end)
    return text, paths


def planted(tree, path, value):
    """A copy of a tree with one value exchanged."""
    if not path:
        return value
    if isinstance(tree, dict):
        return {k: planted(v, path[1:], value) if k == path[0] else v for k, v in tree.items()}
    return [planted(v, path[1:], value) if i == path[0] else v for i, v in enumerate(tree)]


@settings(max_examples=150, deadline=None)
@given(documents(), st.data())
def test_any_value_into_any_place(document, data):
    """One span changes; both parsers then read the new value there and everything else as before."""
    text, paths = document
    path = data.draw(st.sampled_from(paths))
    value = data.draw(SCALARS)
    try:
        new = edit_yaml(text, {path: value})
    except CannotEditYaml as error:
        refused = text.split("\n")[error.line - 1]
    else:
        refused = None
    if refused is not None:
        assert "!!" in refused, "the one thing here that cannot hold every value is an explicit tag"
        return
    assert yaml.safe_load(new) == planted(yaml.safe_load(text), path, value)
    seen = read_1_2(new)
    for key in path:
        seen = seen[key]
    kept_word = isinstance(value, bool) and str(seen).lower() in ("yes", "no", "on", "off")
    assert seen == value or kept_word or new == text
    assert planted(read_1_2(new), path, None) == planted(read_1_2(text), path, None)
    assert sum(a != b for a, b in zip(text.split("\n"), new.split("\n"), strict=True)) == (text != new)


BEYOND = 10**5000  # what Python does not write down
UNFIT = (("!!int 5", ""), ("!!bool true", "x"), ("!!binary aGVs", "\t"), ("!!timestamp 2020-01-01", "x"), ("5", BEYOND))


@pytest.mark.parametrize(("old", "value"), [*UNFIT, ("word", BEYOND)], ids=range(6))
def test_what_a_tag_or_a_number_cannot_hold_is_refused(old, value):
    """With the key and its line, and never as a bug."""
    with pytest.raises(CannotEditYaml) as caught:
        edit_yaml(f"x: {old}\n", {"x": value})
    assert (caught.value.path, caught.value.line) == ("x", 1)
    assert len(str(caught.value)) < 400


LINES = ["autotune:  # ours", "  # a comment", "  command: x"]


def append(text):
    """Return the text with the section."""
    return with_section(Document(text, "config.yaml"), "autotune", LINES)


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


TEXTS = ("1", "x", "'q'", '"d"', "|\n  block\n", ">-\n  folded\n", "[1, 2]", "{b: 1}", "", "~", "&x 1")
SOME_TEXTS = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5)


@given(SOME_TEXTS, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "# end", "\n\n", "  "]), st.booleans())
def test_any_config_keeps_all_its_characters(values, newline, end, has_newline):
    """Whatever stands last: the old text is what is left without the section, or the change is refused."""
    text = "".join(f"k{i}: {value}\n" for i, value in enumerate(values)) + end
    text = (f"{text.rstrip()}\n" if has_newline else text.rstrip()).replace("\n", newline)
    try:
        new = append(text)
    except ConfigError:
        return
    assert new.text.replace(new.inserted, "") == text
    assert Document(new.text).data == {**Document(text).data, "autotune": {"command": "x"}}
    assert without_key(Document(new.text), "autotune").text.startswith(text)


PIECES = ("a: 1\n", "b: |\n  x\n\n", "c:\n  d: [1,\n   2]  # e\n", "# f\n", "\n", "g: 'h\n  # i'\n")


@given(
    st.lists(st.sampled_from(PIECES), unique=True),
    st.lists(st.sampled_from(["j: 1\n", "# k\n", "\n", "l: >\n  m\n", "n: *x\n"]), unique=True),
    st.sampled_from(["k: word\n", "k: |\n    text\n    # no comment\n", "k: *x\n", "k: {m:\n    1}  # l\n"]),
)
def test_a_section_is_cut_out_where_its_content_ends(before, after, last):
    """Its own lines go, with the blank ones behind a block of text; other comments and blank lines stay."""
    head, tail = "x: &x 0\n" + "".join(before), "\n" + "".join(after)
    document = Document(f"{head}autotune:\n  # x\n  y: [1, 2]  # z\n  {last}{tail}")
    assert without_key(document, "autotune").text == head + (tail.lstrip("\n") if last.startswith("k: |") else tail)
