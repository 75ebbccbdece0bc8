"""Message: an English text that remembers its id and its fields, so that it can be said in another language.

The English template stands where the sentence is made, as wording does elsewhere in this package, and a message is a
`str`: whoever prints, compares or keeps it as JSON needs to know of no language. Another language is one table, id →
template with the same fields (`persian.py`). gettext would take the English text itself as the id, so that mending a
word of it loses its translations, and brings catalogues that have to be compiled, for some 200 sentences.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class Message(str):
    """English text with its id and its fields.

    Attributes:
        id: Stable id; empty for a list of messages.
        fields: What its template was filled with, by name: texts, numbers, and further messages.
        parts: Messages that it is a list of; empty for one with an id.
    """

    __slots__ = ("fields", "id", "parts")

    id: str
    fields: Mapping[str, Any]
    parts: tuple[str, ...]

    def __new__(
        cls, text: str, id: str = "", fields: Mapping[str, Any] | None = None, parts: tuple[str, ...] = ()
    ) -> "Message":
        """Return the message."""
        made = super().__new__(cls, text)
        made.id, made.fields, made.parts = id, fields or {}, parts
        return made

    def __deepcopy__(self, _memo: Any) -> "Message":
        return self


def said(id: str, template: str, **fields: Any) -> Message:
    """Return a message.

    Args:
        id: Its id; literal, as a test collects the ids from the source.
        template: What it says in English, with the names of its fields in braces.
        fields: Their values.
    """
    return Message(template.format(**fields), id, fields)


def listed(separator: str, parts: Iterable[str]) -> Message:
    """Return messages as one text.

    Args:
        separator: What stands between them: ``", "``, ``"; "``, ``" "`` or ``" and "``.
        parts: The messages.
    """
    kept = tuple(parts)
    return Message(separator.join(kept), separator, parts=kept)


def capitalized(text: str) -> str:
    """Return a text with a capital letter at its beginning; a message stays one."""
    return _respelled(text, f"{text[:1].upper()}{text[1:]}")


def uncapitalized(text: str) -> str:
    """Return a text with a small letter at its beginning; a message stays one."""
    return _respelled(text, f"{text[:1].lower()}{text[1:]}")


def _respelled(text: str, spelling: str) -> str:
    return Message(spelling, text.id, text.fields, text.parts) if isinstance(text, Message) else spelling
