"""Language of ``autotune diagnose``: asked for by option or variable, never taken from the locale, never in JSON."""

import json
from pathlib import Path

import pytest

from autotune.messages import END_OF_ISOLATE, ISOLATE, Language, _, translated
from tests.commands.conftest import Autotune

STATIC = ("diagnose", "--config", "config.yaml", "--static")
LOOKED_AT = translated(_("Looked at as well"), Language.PERSIAN)


def _english_letters_outside(text: str) -> list[str]:
    """Return the words in Latin letters that stand in no isolate and no brackets."""
    depth, kept = 0, ""
    for character in text:
        depth += (character in f"{ISOLATE}[(") - (character in f"{END_OF_ISOLATE}])")
        kept += character if depth <= 0 else " "
    return [word for word in kept.split() if any("a" <= letter <= "z" for letter in word.lower())]


@pytest.fixture
def plain(project: Path) -> None:
    """A config whose trainer uses no framework: asking TensorFlow takes seconds."""
    (project / "config.yaml").write_text("data:\n  batch_size: 16\n  num_workers: 0\n")


@pytest.mark.usefixtures("project")
def test_no_english_sentence_is_left(autotune: Autotune) -> None:
    """By option; the terms stand in isolates, and nothing is escaped."""
    screen = autotune(*STATIC, "--lang", "fa").stdout
    assert LOOKED_AT in screen
    assert "\\u" not in screen
    assert _english_letters_outside(screen) == []


@pytest.mark.usefixtures("plain")
def test_the_locale_chooses_no_language(autotune: Autotune) -> None:
    """A Persian desktop gets the English screen unless the variable asks; the option goes before the variable."""
    locale = {"LANG": "fa_IR.UTF-8", "LC_ALL": "fa_IR.UTF-8", "LANGUAGE": "fa"}
    assert "Looked at as well" in autotune(*STATIC, env=locale).stdout
    assert LOOKED_AT in autotune(*STATIC, env={"AUTOTUNE_LANG": "fa"}).stdout
    assert "Looked at as well" in autotune(*STATIC, "--lang", "en", env={"AUTOTUNE_LANG": "fa"}).stdout


@pytest.mark.usefixtures("plain")
def test_an_object_is_in_english(autotune: Autotune) -> None:
    """Scripts read the same sentences whatever the language."""
    persian = json.loads(autotune(*STATIC, "--lang", "fa", "--json").stdout)
    assert persian["checks"]
    assert "\\u06" not in json.dumps(persian)
