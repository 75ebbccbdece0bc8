"""Messages: English templates with the values of their fields, said in the reader's language by gettext's catalogs."""

import gettext as catalogs
import re
import string
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

ISOLATE, END_OF_ISOLATE = "\u2068", "\u2069"  # first strong isolate, pop directional isolate
INVISIBLE = frozenset((ISOLATE, END_OF_ISOLATE, "\u200c"))
"""Characters without a shape of their own in a translated text; the third is the zero-width non-joiner of Persian."""

_LATIN = re.compile(r"[A-Za-z@][^\s\u0600-\u06ff،؛؟]*(?: +[A-Za-z@][^\s\u0600-\u06ff،؛؟]*)*")
_BEHIND = ".,:;!?"


class Language(StrEnum):
    """Language of a screen."""

    ENGLISH = "en"
    PERSIAN = "fa"


class Message(str):
    """English text that knows its template and the values of its fields.

    Attributes:
        template: Template, as the catalogs know it; what stands between the parts, for a list.
        plural: Template for all numbers but 1; empty where there is one template.
        fields: Values by name: texts, numbers, and further messages.
        parts: Messages that it is a list of.
    """

    __slots__ = ("fields", "parts", "plural", "template")

    template: str
    plural: str
    fields: Mapping[str, Any]
    parts: tuple[str, ...]

    def __new__(
        cls, text: str, template: str, fields: Mapping[str, Any], plural: str = "", parts: tuple[str, ...] = ()
    ) -> "Message":
        made = super().__new__(cls, text)
        made.template, made.plural, made.fields, made.parts = template, plural, fields, parts
        return made

    def __deepcopy__(self, _memo: Any) -> "Message":
        return self


def _(template: str, /, **fields: Any) -> Message:
    """Return a message.

    Args:
        template: What it says in English, with the names of its fields in braces; literal, as Babel collects it.
        fields: What they are filled with.
    """
    return Message(template.format(**fields), template, fields)


def ngettext(singular: str, plural: str, count: int, /, **fields: Any) -> Message:
    """Return a message about ``count`` things, which is a field like the others."""
    fields["count"] = count
    return Message((singular if count == 1 else plural).format(**fields), singular, fields, plural)


_SEPARATORS = (_(", "), _("; "), _(" and "))


def listed(separator: str, parts: Iterable[str]) -> Message:
    """Return messages as one text.

    Args:
        separator: What stands between them: ``", "``, ``"; "``, ``" and "`` or ``" "``.
    """
    kept = tuple(parts)
    return Message(separator.join(kept), separator, {}, parts=kept)


def capitalized(text: str) -> str:
    """Return a text with a capital letter at its beginning; a message stays one."""
    return _respelled(text, f"{text[:1].upper()}{text[1:]}")


def uncapitalized(text: str) -> str:
    """Return a text with a small letter at its beginning; a message stays one."""
    return _respelled(text, f"{text[:1].lower()}{text[1:]}")


def _respelled(text: str, spelling: str) -> str:
    if not isinstance(text, Message):
        return spelling
    return Message(spelling, text.template, text.fields, text.plural, text.parts)


def translated(text: str, language: Language) -> str:
    """Return a text in a language; what is no message stays in English.

    Numbers, names, paths and what others have said (a driver, the trainer) stand in isolates, so that they keep their
    own direction in a line that runs from right to left (Unicode Standard Annex 9).
    """
    return text if language is Language.ENGLISH else _in(_catalog(language), text, "")


@cache
def _catalog(language: Language) -> catalogs.NullTranslations:
    return catalogs.translation("autotune", Path(__file__).with_name("locale"), [language])


def _in(catalog: catalogs.NullTranslations, value: Any, form: str) -> str:
    """Return a message, or the value of a field, as it stands in a sentence."""
    if not isinstance(value, Message):
        shown = "".join(character for character in format(value, form) if character not in INVISIBLE)
        return f"{ISOLATE}{shown}{END_OF_ISOLATE}" if shown else ""
    if value.parts:
        return catalog.gettext(value.template).join(_in(catalog, part, "") for part in value.parts)
    if value.plural:
        template = catalog.ngettext(value.template, value.plural, value.fields["count"])
    else:
        template = catalog.gettext(value.template)
    return "".join(
        _with_isolates(literal) + (_in(catalog, value.fields[name], form or "") if name is not None else "")
        for literal, name, form, _conversion in string.Formatter().parse(template)
    )


def _with_isolates(literal: str) -> str:
    def isolated(found: re.Match[str]) -> str:
        term = found[0].rstrip(_BEHIND)
        while term.endswith(")") and term.count(")") > term.count("("):
            term = term[:-1].rstrip(_BEHIND)  # it belongs to the sentence around it
        return f"{ISOLATE}{term}{END_OF_ISOLATE}{found[0][len(term) :]}"

    return _LATIN.sub(isolated, literal)
