"""Language of ``autotune diagnose``: asked for by option or variable, never taken from the locale, never in JSON."""

import json
from pathlib import Path

import pytest

from autotune.messages import END_OF_ISOLATE, ISOLATE, Language, _, translated
from tests.command_line import CommandLine

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
def autotune(tmp_path: Path) -> CommandLine:
    """Command line with a config without a command: no framework is asked, which takes seconds."""
    (tmp_path / "config.yaml").write_text("data:\n  batch_size: 16\n  num_workers: 0\n")
    return CommandLine(tmp_path)


def test_no_english_sentence_is_left(autotune: CommandLine) -> None:
    """By option; the terms stand in isolates, and nothing is escaped."""
    screen = autotune(*STATIC, "--lang", "fa").stdout
    assert LOOKED_AT in screen
    assert "\\u" not in screen
    assert _english_letters_outside(screen) == []


def test_the_locale_chooses_no_language(autotune: CommandLine) -> None:
    """A Persian desktop gets the English screen unless the variable asks; the option goes before the variable."""
    locale = {"LANG": "fa_IR.UTF-8", "LC_ALL": "fa_IR.UTF-8", "LANGUAGE": "fa"}
    assert "Looked at as well" in autotune(*STATIC, env=locale).stdout
    assert LOOKED_AT in autotune(*STATIC, env={"AUTOTUNE_LANG": "fa"}).stdout
    assert "Looked at as well" in autotune(*STATIC, "--lang", "en", env={"AUTOTUNE_LANG": "fa"}).stdout


def test_an_object_is_in_english(autotune: CommandLine) -> None:
    """Scripts read the same sentences whatever the language."""
    persian = autotune(*STATIC, "--lang", "fa", "--json").document
    assert persian["checks"]
    assert "\\u06" not in json.dumps(persian)
