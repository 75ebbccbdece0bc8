"""Texts that may be paths: whatever a config or a command holds, asking the file system about it cannot fail."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config.outputs import exists, holds_something, is_program, is_same_file, path_of, real_path

ODD = {
    "a long name": "w" * 300,
    "a long path": "a/" * 3000,
    "a zero byte": "a\0/b",
    "a zero byte behind a tilde": "~a\0/b",
    "an emoji as JSON writes it": "\ud83d\ude00/x",
    "half a surrogate pair": "~\ud800",
    "a byte that is no text": "\udcff/x",
    "nothing": "",
    "a user that is not there": "~nobody-of-this-name/x",
    "a path through a file": f"{__file__}/x",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_an_odd_text_is_no_path(text, tmp_path):
    """It names nothing that is there, and no question about it raises."""
    named = path_of(text, tmp_path) or tmp_path / text
    real_path(named)
    asked = (exists(named), is_program(named), is_same_file(named, tmp_path), holds_something(named))
    assert not any(asked) or text == ""


@given(text=st.text(st.characters()))
def test_no_text_can_fail(text):
    """Any characters are allowed, surrogates among them."""
    named = path_of(text, Path("/nowhere"))
    if named is not None:
        exists(named)
        real_path(named)
        holds_something(named)


def test_a_million_folders_are_no_path(tmp_path):
    """A text longer than any path is not looked up folder by folder."""
    assert path_of("a/" * 1_000_000, tmp_path) is None


def test_ordinary_paths(tmp_path, monkeypatch):
    """Relative, absolute, of one's home, through a link: they are what they are elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "data" / "tool").write_text("")
    assert path_of("data", tmp_path) == tmp_path / "data"
    assert path_of("/x", tmp_path) == Path("/x")
    assert path_of("~/data", Path("/x")) == tmp_path / "data"
    assert real_path(tmp_path / "link") == tmp_path.resolve() / "data"
    assert exists(tmp_path / "link")
    assert holds_something(tmp_path / "data")
    assert holds_something(tmp_path / "data" / "tool")
    assert is_same_file(tmp_path / "link", tmp_path / "data")
    assert not is_program(tmp_path / "data")
    assert not is_program(tmp_path / "data" / "tool")
    os.chmod(tmp_path / "data" / "tool", 0o755)
    assert is_program(tmp_path / "data" / "tool")
