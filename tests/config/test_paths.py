"""Texts that may be paths: whatever a config or a command holds, asking the file system about it cannot fail."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from autotune.config.outputs import exists, holds_something, path_of, real_path


@given(text=st.text(st.characters()))
def test_no_text_can_fail(text):
    """Any characters are allowed, surrogates among them."""
    named = path_of(text, Path("/nowhere"))
    if named is not None:
        exists(named)
        real_path(named)
        holds_something(named)
