"""Parsing of a config: values, places, and refusals with a reason."""

from pathlib import Path

import pytest

from autotune.config.document import Document
from autotune.errors import CannotEditYaml, ConfigError

CONFIG = """\
# Training.
data:
  batch_size: 16  # per GPU
  workers: 0o4
optim:
  lr: 1e-4
  nesterov: yes
  version: !!str 1e-4
layers: [64, {size: 128}]
"""


def test_values_and_lines():
    """Every scalar has its dotted path, its value and its line."""
    document = Document(CONFIG)
    optim = {"optim.lr": 0.0001, "optim.nesterov": True, "optim.version": "1e-4"}
    rest = {"data.batch_size": 16, "data.workers": 4, "layers.0": 64, "layers.1.size": 128}
    assert dict(document.scalars) == optim | rest
    assert document.line("optim.lr") == 6
    assert document.line("optim.momentum") is None


def test_data_is_plain():
    """Merge keys are resolved as PyYAML does it, own keys first, and unknown tags construct nothing."""
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\nc: !!python/object/apply:os.system ['touch pwned']\n1: on\n"
    merged = {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert Document(text).data == merged | {"c": ["touch pwned"], "1": True}


def test_fixed_values_are_listed_with_a_reason():
    """A value that cannot be edited has a reason, so that a search can leave it out and say so."""
    text = "a: &x 1\nb: *x\nc: |\n  text\nd: ${a}\ne: !ref <a>\nf: 1\ng: 'two\n  lines'\n"
    refused = Document(text).refused
    assert set(refused) == {"a", "c", "d", "e", "g"}
    assert "alias" in refused["a"]
    assert "!ref" in refused["e"]


def test_keys_with_dots():
    """A dotted path also finds keys that contain dots; a tuple says which is meant."""
    document = Document("model.dim: 8\nmodel: {heads: 2, dim: 4}\n")
    assert document.leaf(("model.dim",)).value == 8
    assert document.leaf(("model", "dim")).value == 4
    assert document.leaf("model.heads").value == 2
    with pytest.raises(CannotEditYaml, match="two keys match"):
        document.leaf("model.dim")


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb: [1\n", 3, "expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("a: 1\n---\nb: 2\n", 2, "several YAML documents"),
        ("a: 1\nb: {{ b }}\n", 2, "template"),
        ("a: 1\n{% if x %}\nb: 1\n{% endif %}\n", 2, "template"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key is a list"),
        ("- 1\n", 1, "the file is a list"),
        ("a: 1\nb: !!int x\n", 2, "cannot be read as int"),
        ("a: 1\nb: \x07\n", 2, "does not allow the character"),
        ("a: 1\nb: *nowhere\n", 2, "undefined alias"),
        ("a: 1\nb: &b\n  c: *b\n", 2, "contains itself"),
    ],
)
def test_what_cannot_be_read_names_its_line(text, line, why):
    """Every refusal says file, line, reason, and what to do."""
    with pytest.raises(ConfigError, match=why) as caught:
        Document(text, "config.yaml")
    assert caught.value.where == f"config.yaml:{line}"
    assert caught.value.remedy


def test_bombs_are_refused_at_once():
    """Aliases that unfold to 9^9 values, or a thousand nested lists, neither hang nor crash."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
    )
    for text, why in (
        (bomb, "100,000 values"),
        ("a: " + "[\n" * 5000, "deep"),
        ("a: " + "[" * 120 + "]" * 120, "deep"),
    ):
        with pytest.raises(ConfigError, match=why):
            Document(text)


def test_reading_files(tmp_path: Path):
    """The bytes are kept as they are; a file that is none, or no text, is an error with its place."""
    config = tmp_path / "con fig'.yaml"
    content = "\ufeffa: 1\r\nb: 'ü'".encode()
    config.write_bytes(content)
    assert Document.read(config).text.encode() == content
    for path, why in ((tmp_path / "missing.yaml", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(ConfigError, match=why):
            Document.read(path)
    config.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        Document.read(config)
    assert caught.value.where == f"{config}:2"
    config.write_bytes(b"a: 1\n" + b"#" * 2**20)
    with pytest.raises(ConfigError, match=r"1\.0 MiB; a config may have 1 MiB"):
        Document.read(config)


def test_a_surrogate_pair_is_its_character():
    """As JSON writes an emoji in escapes; the text stays as it is, and half a pair is half a pair."""
    text = '{"about": "a \\ud83d\\ude00", "half": "\\ud83d"}\n'
    document = Document(text)
    assert dict(document.scalars) == {"about": "a \U0001f600", "half": "\ud83d"}
    assert document.leaf("about").text == "a \U0001f600"
    assert document.text == text


@pytest.mark.parametrize(
    "text",
    [
        "x: !!int ''",
        "x: !!int 0x",
        "x: !!bool 5",
        f"x: {'9' * 5000}",
        f"x: 1{':59' * 2500}",
        'x: "\\UFFFFFFFF"',
        f"%YAML 1.{'9' * 5000}\n---\nx: 5",
    ],
)
def test_what_no_parser_can_read_is_refused(text):
    """With the file, and in few words."""
    with pytest.raises(ConfigError) as caught:
        Document(f"{text}\n", "config.yaml").root_1_2  # noqa: B018
    assert caught.value.where.startswith("config.yaml")
    assert len(str(caught.value)) < 500
