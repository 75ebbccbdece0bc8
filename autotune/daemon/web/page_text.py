"""Text from outside for the page: without control sequences and control characters, of a bounded length."""

from autotune.report.plain_text import plain

_MOST_LINES = 200


def line(text: str | None, longest: int = 300) -> str | None:
    """Return a text as one line; None stays None."""
    return None if text is None else plain(str(text)[: 4 * longest], longest)


def block(text: str, longest: int) -> str:
    """Return a text with its line ends, cut off in the end where it is longer."""
    kept = text[: longest + 1].splitlines()[:_MOST_LINES]
    whole = "\n".join(plain(one, longest) for one in kept)
    return whole if len(text) <= longest and len(text.splitlines()) <= _MOST_LINES else f"{whole[:longest]}\n…"


def tail(text: str, longest: int) -> str:
    """Return the end of a text with its line ends."""
    kept = text[-longest:].splitlines()[-_MOST_LINES:]
    return "\n".join(plain(one, longest) for one in kept)
