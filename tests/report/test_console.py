"""The console that nothing steers."""

import io
from typing import Any

import pytest
from rich.console import RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autotune.report.console import SafeConsole

HOSTILE = "a\x1b[2Jb"
SHOWN = "a\\x1b[2Jb"


def printed(what: RenderableType, **options: Any) -> str:
    """Return what the console writes of it."""
    file = io.StringIO()
    SafeConsole(file=file, **{"width": 60, **options}).print(what)
    return file.getvalue()


def _table() -> Table:
    table = Table(HOSTILE, box=None)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, style="bold"))
    return table


@pytest.mark.parametrize(
    "what",
    [HOSTILE, Text(HOSTILE), Text.assemble(("x", "red"), HOSTILE), Segment(HOSTILE), _table()],
    ids=["text", "styled", "assembled", "segment", "table"],
)
def test_a_text_is_shown_whatever_holds_it(what: RenderableType) -> None:
    """In a file there is nothing but what can be read."""
    screen = printed(what, highlight=False, markup=False)
    assert SHOWN in screen
    assert all(character.isprintable() or character == "\n" for character in screen)


def test_a_text_keeps_its_style() -> None:
    """Each of its parts."""
    text = Text.assemble(("red", "red"), ("\x1b", "bold"), "plain")
    screen = printed(text, force_terminal=True, color_system="standard")
    assert screen == "\x1b[31mred\x1b[0m\x1b[1m\\x1b\x1b[0mplain\n"


def test_lines_are_broken_with_what_is_shown() -> None:
    """A line never gets longer than the terminal is wide: a live display counts them."""
    assert max(map(len, printed(Text("\x1b" * 10), width=12).splitlines())) <= 12


def test_a_live_display_moves_the_cursor_itself() -> None:
    """The display's text is filtered, its own sequences are not."""
    file = io.StringIO()
    console = SafeConsole(file=file, width=60, force_terminal=True, color_system=None)
    with Live(Text(HOSTILE), console=console, auto_refresh=False) as live:
        live.update(Text(HOSTILE), refresh=True)
    assert SHOWN in file.getvalue()
    assert HOSTILE not in file.getvalue()
    assert "\x1b[?25l" in file.getvalue()  # the cursor is hidden
