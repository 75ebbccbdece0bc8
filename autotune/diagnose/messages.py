"""Messages in another language: looked up by their ids, filled, and safe beside text that runs the other way."""

import re
import string
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from autotune.diagnose.persian import PERSIAN

ISOLATE, END_OF_ISOLATE = "\u2068", "\u2069"  # first strong isolate, pop directional isolate
JOINER = "\u200c"  # the zero-width non-joiner of Persian spelling
INVISIBLE = frozenset((ISOLATE, END_OF_ISOLATE, JOINER))
"""Characters without a shape of their own that a translated text holds."""

_LATIN = re.compile(r"[A-Za-z@][^\s\u0600-\u06ff،؛؟]*(?: +[A-Za-z@][^\s\u0600-\u06ff،؛؟]*)*")
_BEHIND = ".,:;!?"


class Language(StrEnum):
    """Language of a screen."""

    ENGLISH = "en"
    PERSIAN = "fa"


TABLES: Mapping[Language, Mapping[str, str]] = {Language.PERSIAN: PERSIAN}
"""Templates by id, for each language but English."""


def translated(text: str, language: Language) -> str:
    """Return a text in a language; what is no message stays in English.

    Numbers, names, paths and what others have said (a driver, the trainer) stand in isolates, so that they keep their
    own direction in a line that runs from right to left (Unicode Standard Annex 9).
    """
    if language not in TABLES:
        return text
    table = TABLES[language]
    if not isinstance(text, Message):
        return _filled(text, "", table, language)
    if text.parts:
        return table[text.id].join(_filled(part, "", table, language) for part in text.parts)
    pieces = []
    for literal, name, form, _ in string.Formatter().parse(table[text.id]):
        pieces.append(_with_isolates(literal))
        if name is not None:
            pieces.append(_filled(text.fields[name], form or "", table, language))
    return "".join(pieces)


def _filled(value: Any, form: str, table: Mapping[str, str], language: Language) -> str:
    """Return the value of a field as it stands in a sentence."""
    if isinstance(value, Message):
        return translated(value, language)
    shown = format(value, form)
    clean = "".join(character for character in shown if character not in INVISIBLE)
    return f"{ISOLATE}{clean}{END_OF_ISOLATE}" if clean else ""


def _with_isolates(literal: str) -> str:
    def isolated(found: re.Match[str]) -> str:
        term = found[0].rstrip(_BEHIND)
        while term.endswith(")") and term.count(")") > term.count("("):
            term = term[:-1].rstrip(_BEHIND)  # it belongs to the sentence around it
        return f"{ISOLATE}{term}{END_OF_ISOLATE}{found[0][len(term) :]}"

    return _LATIN.sub(isolated, literal)


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
    """
    return Message(template.format(**fields), id, fields)


def listed(separator: str, parts: Iterable[str]) -> Message:
    """Return messages as one text.

    Args:
        separator: What stands between them: ``", "``, ``"; "``, ``" "`` or ``" and "``.
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
