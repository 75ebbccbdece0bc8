"""Config values, changes, and foreign text: on one line, or at least unable to steer a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.records import Scalar
from autotune.report.plain_text import changes_text, is_safe, plain, safe_text, value_text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), (False, "false"), (8, "8"), (0.5, "0.5"), ("memory", "memory")]
)
def test_values_look_as_in_the_file(value: Scalar, text: str) -> None:
    """A shown value can be typed into the YAML."""
    assert value_text(value) == text


def test_changes_go_by_short_names() -> None:
    """The last part of a key is enough, but where two end alike."""
    assert changes_text({"data.batch_size": 32, "data.cache": "memory"}) == "batch_size=32, cache=memory"
    assert changes_text({"a.size": 1, "b.size": 2, "c.on": True}) == "a.size=1, b.size=2, on=true"
    assert changes_text({}) == "today's values"


def test_text_from_outside_is_one_line_without_control() -> None:
    """Escape sequences are taken out, line ends are spaces, and long text is cut with a mark."""
    assert plain("a\x1b[31mred\x1b[0m\nb\x07") == "ared b "
    assert plain("abcdef", longest=4) == "abc…"


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
