"""Consoles that escape control characters: everything beyond plain lines is printed by one of these."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from autotune.report.plain_text import is_safe, safe_text

_FILE_WIDTH = 160  # columns, where there is no terminal


class SafeConsole(Console):
    """Console of rich that prints control characters of any text as visible escapes.

    Its own sequences (colours, cursor movements of live displays) are not part of any text, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and not is_safe(renderable.plain):
            renderable = self._safe(renderable)  # before its lines are broken, so that they fit
        for segment in super().render(renderable, options):
            yield segment if segment.control or is_safe(segment.text) else self._safe_segment(segment)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console.render_str`; also asked for the width of a table's cells."""
        return super().render_str(safe_text(text), **options)

    def _safe(self, text: Text) -> Text:
        safe = Text(
            style=text.style, justify=text.justify, overflow=text.overflow, no_wrap=text.no_wrap, end=text.end,
            tab_size=text.tab_size,
        )  # fmt: skip
        for part in text.render(self):
            safe.append(safe_text(part.text), part.style)
        return safe

    def _safe_segment(self, segment: Segment) -> Segment:
        return Segment(safe_text(segment.text), segment.style)


def file_console() -> SafeConsole:
    """Return a console for what goes into a file: like `text_console`, without colours, of the same width anywhere."""
    return SafeConsole(
        force_terminal=False, no_color=True, highlight=False, markup=False, emoji=False, width=_FILE_WIDTH
    )


def text_console(*, stderr: bool = False) -> SafeConsole:
    """Return a console for plain prose, without markup, emoji or automatic highlighting."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _FILE_WIDTH
    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)
