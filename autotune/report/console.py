"""Consoles that escape control characters."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from autotune.report.plain_text import is_safe, safe_text

_FILE_WIDTH = 160  # columns without a terminal


class SafeConsole(Console):
    """Rich console that escapes control characters in text; keeps its own sequences."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and not is_safe(renderable.plain):
            renderable = self._safe(renderable)  # before wrapping, because escapes are longer
        for segment in super().render(renderable, options):
            is_kept = segment.control or is_safe(segment.text)
            yield segment if is_kept else Segment(safe_text(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape like `render`; also measures cells."""
        return super().render_str(safe_text(text), **options)

    def _safe(self, text: Text) -> Text:
        safe = Text(
            style=text.style, justify=text.justify, overflow=text.overflow, no_wrap=text.no_wrap, end=text.end,
            tab_size=text.tab_size,
        )  # fmt: skip
        for part in text.render(self):
            safe.append(safe_text(part.text), part.style)
        return safe


def file_console() -> SafeConsole:
    """Return a console for files, of fixed width."""
    return SafeConsole(
        force_terminal=False, no_color=True, highlight=False, markup=False, emoji=False, width=_FILE_WIDTH
    )


def text_console(*, stderr: bool = False) -> SafeConsole:
    """Return a console without markup, emoji or highlighting."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _FILE_WIDTH
    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)
