"""Messages in another language: looked up by their ids, filled, and safe beside text that runs the other way."""

import re
import string
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from autotune.diagnose.messages.message import Message
from autotune.diagnose.messages.persian import PERSIAN

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

    Args:
        text: A message, or any text.
        language: The language.
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
    """Return a part of a template with its English terms in isolates."""

    def isolated(found: re.Match[str]) -> str:
        term = found[0].rstrip(_BEHIND)
        while term.endswith(")") and term.count(")") > term.count("("):
            term = term[:-1].rstrip(_BEHIND)  # it belongs to the sentence around it
        return f"{ISOLATE}{term}{END_OF_ISOLATE}{found[0][len(term) :]}"

    return _LATIN.sub(isolated, literal)
