"""Promises of messages: English stays as it is, each has a translation, and each keeps its own direction."""

import copy
import io
import json
import string
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_MAPPING, extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

import autotune
from autotune.diagnose.tables import RULES
from autotune.messages import (
    END_OF_ISOLATE,
    ISOLATE,
    Language,
    _,
    capitalized,
    listed,
    ngettext,
    translated,
    uncapitalized,
)

PACKAGE = Path(autotune.__file__).parent


@pytest.fixture(scope="module", params=sorted(PACKAGE.glob("locale/*/LC_MESSAGES/autotune.po")), ids=str)
def catalog(request: pytest.FixtureRequest) -> tuple[Path, Catalog]:
    """Catalog of a language, and its file."""
    with request.param.open("rb") as file:
        return request.param, read_po(file)


def _fields(*templates: str) -> set[str]:
    return {name for template in templates for _text, name, *_form in string.Formatter().parse(template) if name}


def _strings(text: object) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, (tuple, list)) else (str(text),)


def test_every_message_has_a_translation(catalog: tuple[Path, Catalog]) -> None:
    """None is without one or in doubt, and no translation is left over: ``scripts/messages`` sees to the rest."""
    mapping = [*DEFAULT_MAPPING, ("**.toml", "scripts.messages_in_tables:extract")]
    in_source = {_strings(found[2]) for found in extract_from_dir(PACKAGE, mapping)}
    assert len(in_source) > 300
    translations = {_strings(one.id): one for one in catalog[1] if one.id}
    assert translations.keys() == in_source
    assert [one.id for one in translations.values() if one.fuzzy or not all(_strings(one.string))] == []


def test_a_translation_says_all_that_the_english_says(catalog: tuple[Path, Catalog]) -> None:
    """It has the same fields, so that no number is lost; and the same digits."""
    for one in (one for one in catalog[1] if one.id):
        for text in _strings(one.string):
            assert _fields(text) == _fields(*_strings(one.id))
            assert not set(text) & set("۰۱۲۳۴۵۶۷۸۹")


def test_the_translations_that_are_read_are_those_that_are_written(catalog: tuple[Path, Catalog]) -> None:
    """The compiled catalog, which an installation brings, is made of the present text."""
    compiled = io.BytesIO()
    write_mo(compiled, catalog[1])
    assert catalog[0].with_suffix(".mo").read_bytes() == compiled.getvalue()


def test_a_message_is_its_english_text() -> None:
    """Whoever compares it, cuts it, copies it or keeps it as JSON finds a text."""
    message = _("{key} is 0 and this machine has {cores} cores.", key="a.b", cores=4)
    assert message == "a.b is 0 and this machine has 4 cores."
    assert json.loads(json.dumps({"sentence": message})) == {"sentence": str(message)}
    assert copy.deepcopy(message) is message
    assert translated(message, Language.ENGLISH) is message


def test_fields_and_terms_stand_in_isolates() -> None:
    """A key, a number with its unit and an English term keep their direction in a line from right to left."""
    inner = _("{ratio}x ({low} to {high})", ratio="2.6", low="2.4", high="2.8")
    text = translated(_("{change} is {gain} as fast.", change="a.b: 4", gain=inner), Language.PERSIAN)
    assert text.startswith(f"{ISOLATE}a.b: 4{END_OF_ISOLATE} سرعت را {ISOLATE}2.6{END_OF_ISOLATE} برابر")
    term = translated(_("XLA compiles graphs only"), Language.PERSIAN)
    assert f"{ISOLATE}XLA{END_OF_ISOLATE}" in term
    assert f"{ISOLATE}graph{END_OF_ISOLATE}" in term
    assert term.count(ISOLATE) == term.count(END_OF_ISOLATE)
    rule = translated(next(one.sentence for one in RULES if one.id == "python-in-graph"), Language.PERSIAN)
    assert f"{ISOLATE}py_function{END_OF_ISOLATE})" in rule


def test_what_others_say_cannot_leave_its_isolate() -> None:
    """A name that holds the end of an isolate, as no honest one does, does not turn the rest of the line round."""
    hostile = f"gpu{END_OF_ISOLATE}\u202e"
    text = translated(_("{change}", change=hostile), Language.PERSIAN)
    assert text == f"{ISOLATE}gpu\u202e{END_OF_ISOLATE}"  # the console shows \u202e as an escape
    assert translated("plain", Language.PERSIAN) == f"{ISOLATE}plain{END_OF_ISOLATE}"


def test_lists_are_joined_as_the_language_does() -> None:
    """Commas are Persian ones, and each part is translated."""
    parts = [ngettext("{count} error", "{count} errors", count) for count in (1, 2)]
    assert listed(", ", parts) == "1 error, 2 errors"
    assert "، " in translated(listed(", ", parts), Language.PERSIAN)
    assert "error" not in translated(listed(", ", parts), Language.PERSIAN)


def test_a_letter_of_the_beginning_is_not_the_translations_matter() -> None:
    """A sentence that begins another way in English is the same one."""
    message = _("a disk that rotates")
    assert capitalized(message) == "A disk that rotates"
    assert uncapitalized(capitalized(message)) == message
    assert translated(capitalized(message), Language.PERSIAN) == translated(message, Language.PERSIAN)
