"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; every row has as many cells as there are heads."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
