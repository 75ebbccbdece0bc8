"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.

    Args:
        head: Column names.
        rows: Cells, in Markdown.
    """
    lines = [f"| {' | '.join(map(_cell, line))} |" for line in (head, *rows)]
    return "\n".join((lines[0], "|---" * len(head) + "|", *lines[1:]))


def code(text: str) -> str:
    """Return a text as inline code; an empty text stays empty."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a text on one line, with ``<`` escaped."""
    return " ".join(text.replace("<", "&lt;").split())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
