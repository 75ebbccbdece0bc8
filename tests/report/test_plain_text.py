"""Config values, changes, and foreign text on one line."""

import pytest

from autotune.records import Scalar
from autotune.report.plain_text import changes_text, plain, value_text


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
