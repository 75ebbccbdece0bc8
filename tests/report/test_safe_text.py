"""Text that cannot steer a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report.plain_text import is_safe, safe_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 3 °C, 日本語", "plain, 3 °C, 日本語"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("wide\u3000and fixed\u00a0spaces", "wide\u3000and fixed\u00a0spaces"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwritten\b", "over\\rwritten\\x08"),
        ("\x9b2J of C1", "\\x9b2J of C1"),
        ("gnp\u202e.exe", "gnp\\u202e.exe"),
        ("half of a pair \udcff", "half of a pair \\udcff"),
    ],
)
def test_what_steers_is_shown(text: str, shown: str) -> None:
    """And what does not stays as it is."""
    assert safe_text(text) == shown
    assert is_safe(shown)


@given(st.text())
def test_nothing_unsafe_is_left(text: str) -> None:
    """No input leaves unsafe characters; and to filter twice is to filter once."""
    shown = safe_text(text)
    assert is_safe(shown)
    assert safe_text(shown) == shown
    assert not any(ord(character) < 0x20 and character not in "\n\t" for character in shown)
