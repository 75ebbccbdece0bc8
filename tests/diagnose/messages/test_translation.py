"""Promises of messages: English stays as it is, each has a translation, and each keeps its own direction."""

import copy
import json
import string

import pytest

from autotune.diagnose.messages import (
    END_OF_ISOLATE,
    ISOLATE,
    Language,
    Message,
    capitalized,
    listed,
    said,
    translated,
    uncapitalized,
)
from autotune.diagnose.persian import PERSIAN
from scripts.documentation.messages import english_templates

_ENGLISH_ALONE = {"s", "verb"}  # fields of English grammar


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_message_has_a_translation() -> None:
    """No id is without one, and no translation is left over."""
    assert {id for id, _ in english_templates()} - PERSIAN.keys() == set()
    assert PERSIAN.keys() - {id for id, _ in english_templates()} == set()


def test_an_id_says_one_thing() -> None:
    """The same id never stands for two English sentences."""
    pairs = set(english_templates())
    assert len(pairs) == len({id for id, _ in pairs})


@pytest.mark.parametrize(("id", "english"), sorted(set(english_templates())))
def test_a_translation_says_all_that_the_english_says(id: str, english: str) -> None:
    """It has the same fields, so that no number is lost; and the same digits."""
    assert _fields(PERSIAN[id]) == _fields(english) - _ENGLISH_ALONE
    assert not set(PERSIAN[id]) & set("۰۱۲۳۴۵۶۷۸۹")


def test_a_message_is_its_english_text() -> None:
    """Whoever compares it, cuts it, copies it or keeps it as JSON finds a text."""
    message = said("config.no-workers", "{key} is 0 and this machine has {cores} cores.", key="a.b", cores=4)
    assert message == "a.b is 0 and this machine has 4 cores."
    assert json.loads(json.dumps({"sentence": message})) == {"sentence": str(message)}
    assert copy.deepcopy(message) is message
    assert translated(message, Language.ENGLISH) is message


def test_fields_and_terms_stand_in_isolates() -> None:
    """A key, a number with its unit and an English term keep their direction in a line from right to left."""
    inner = said("ratio", "{ratio}x ({low} to {high})", ratio="2.6", low="2.4", high="2.8")
    text = translated(
        said("switches.gain", "{change} is {gain} as fast.", change="a.b: 4", gain=inner), Language.PERSIAN
    )
    assert text.startswith(f"{ISOLATE}a.b: 4{END_OF_ISOLATE} سرعت را {ISOLATE}2.6{END_OF_ISOLATE} برابر")
    term = translated(said("mistake.graphs", "XLA compiles graphs only"), Language.PERSIAN)
    assert f"{ISOLATE}XLA{END_OF_ISOLATE}" in term
    assert f"{ISOLATE}graph{END_OF_ISOLATE}" in term
    assert term.count(ISOLATE) == term.count(END_OF_ISOLATE)
    rule = translated(Message("", "rule.python-in-graph"), Language.PERSIAN)
    assert f"{ISOLATE}py_function{END_OF_ISOLATE})" in rule


def test_what_others_say_cannot_leave_its_isolate() -> None:
    """A name that holds the end of an isolate, as no honest one does, does not turn the rest of the line round."""
    hostile = f"gpu{END_OF_ISOLATE}\u202e"
    text = translated(said("switches.change", "{change}", change=hostile), Language.PERSIAN)
    assert text == f"{ISOLATE}gpu\u202e{END_OF_ISOLATE}"  # the console shows \u202e as an escape
    assert translated("plain", Language.PERSIAN) == f"{ISOLATE}plain{END_OF_ISOLATE}"


def test_lists_are_joined_as_the_language_does() -> None:
    """Commas are Persian ones, and each part is translated."""
    parts = [said("count.errors", "{count} error{s}", count=n, s="s" * (n != 1)) for n in (1, 2)]
    assert listed(", ", parts) == "1 error, 2 errors"
    assert "، " in translated(listed(", ", parts), Language.PERSIAN)
    assert "error" not in translated(listed(", ", parts), Language.PERSIAN)


def test_a_letter_of_the_beginning_is_not_the_translations_matter() -> None:
    """A sentence that begins another way in English is the same one."""
    message = Message("a disk that rotates", "storage.rotates")
    assert capitalized(message) == "A disk that rotates"
    assert uncapitalized(capitalized(message)) == message
    assert translated(capitalized(message), Language.PERSIAN) == translated(message, Language.PERSIAN)
