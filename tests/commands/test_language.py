"""Language of ``autotune diagnose``: asked for by option or variable, never taken from the locale, never in JSON."""

import json
from pathlib import Path

import pytest

from autotune.diagnose.messages.persian import PERSIAN
from autotune.diagnose.messages.translation import END_OF_ISOLATE, ISOLATE
from tests.commands.conftest import Autotune

STATIC = ("diagnose", "--config", "config.yaml", "--static")
LOOKED_AT = PERSIAN["screen.looked-at"]


def _english_letters_outside(text: str) -> list[str]:
    """Return the words in Latin letters that stand in no isolate and no brackets."""
    depth, kept = 0, ""
    for character in text:
        depth += (character in f"{ISOLATE}[(") - (character in f"{END_OF_ISOLATE}])")
        kept += character if depth <= 0 else " "
    return [word for word in kept.split() if any("a" <= letter <= "z" for letter in word.lower())]


def test_the_screen_is_in_the_language_that_was_asked_for(project: Path, autotune: Autotune) -> None:
    """By option, or by variable; its terms stand in isolates, and no English sentence is left."""
    by_option = autotune(*STATIC, "--lang", "fa").stdout
    by_variable = autotune(*STATIC, env={"AUTOTUNE_LANG": "fa"}).stdout
    assert LOOKED_AT in by_option
    assert LOOKED_AT in by_variable
    assert "\\u" not in by_option, "nothing of it is escaped"
    assert _english_letters_outside(by_option) == []


def test_the_locale_chooses_no_language(project: Path, autotune: Autotune) -> None:
    """A Persian desktop gets the English screen unless it asks; the option goes before the variable."""
    locale = {"LANG": "fa_IR.UTF-8", "LC_ALL": "fa_IR.UTF-8", "LANGUAGE": "fa"}
    assert "Looked at as well" in autotune(*STATIC, env=locale).stdout
    assert "Looked at as well" in autotune(*STATIC, "--lang", "en", env={"AUTOTUNE_LANG": "fa"}).stdout


def test_an_object_is_in_english(project: Path, autotune: Autotune) -> None:
    """Scripts read the same sentences whatever the language."""
    persian = json.loads(autotune(*STATIC, "--lang", "fa", "--json").stdout)
    assert json.dumps(persian).isascii()
    assert "\\u06" not in json.dumps(persian)


@pytest.mark.usefixtures("project")
def test_a_language_that_is_not_there_is_wrong_usage(autotune: Autotune) -> None:
    """The message names those that are."""
    done = autotune(*STATIC, "--lang", "de")
    assert done.returncode == 2
    assert "fa" in done.stderr
