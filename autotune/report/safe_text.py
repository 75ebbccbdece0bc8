"""Text without control characters, made of any text."""

import unicodedata

_LAYOUT = "\n\t"


def is_safe(text: str) -> bool:
    """Return True if a text holds nothing but printable characters, line ends and tabs."""
    return text.isprintable() or all(map(_is_kept, text))


def safe_text(text: str, kept: frozenset[str] = frozenset()) -> str:
    r"""Replace control and format characters by their visible escapes, such as ``\x1b`` and ``\u202e``.

    Printable characters, line ends, tabs and spaces of any width stay; ``\r\n`` is one line end.

    Args:
        text: The text.
        kept: Further characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character in kept or _is_kept(character) else _escaped(character)
        for character in text.replace("\r\n", "\n")
    )


def _is_kept(character: str) -> bool:
    return character.isprintable() or character in _LAYOUT or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
