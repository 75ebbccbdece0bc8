"""Text of the section as init writes it."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.config.command import split_command
from autotune.config.document import Document
from autotune.config.schema import ListedKnob, SectionSource, TrialLimits, parse_section, section_lines
from autotune.errors import ConfigError


def read(lines: list[str]):
    """Read the section as a search does."""
    return parse_section(SectionSource(Document("\n".join(["a: 1", *lines]) + "\n"), ("autotune",)))


def uncommented(lines: list[str]) -> list[str]:
    """Return the lines with the list of knobs, or everything that is no prose, taken out of its comment."""
    start = lines.index("  # knobs:")
    listed = [start, *range(start + 1, next(i for i in range(start + 1, len(lines)) if lines[i][:6] != "  #   "))]
    return [line.replace("# ", "", 1) if i in listed else line for i, line in enumerate(lines)]


KNOBS = (
    ListedKnob(path="data.batch_size", choices=(8, 16), baseline=8, note="samples per step"),
    ListedKnob(path="a key: with # all", choices=("x, y", None, "yes"), baseline=None, note="odd"),
    ListedKnob(path="lr", choices=(1e-05, 0.5), baseline=0.5, note="a number to both parsers"),
    ListedKnob(path="xla", choices=(False, True), baseline=True, note="a switch"),
)


def test_the_list_means_what_it_shows() -> None:
    """With its comment signs taken away it gives these domains, whatever the keys and values are."""
    section = read(uncommented(section_lines(("t", "{config}"), env={}, knobs=KNOBS, redirected=())))
    assert section.knobs == {knob.path: knob.choices for knob in KNOBS}


def test_the_defaults_that_it_shows_are_the_defaults() -> None:
    """A line that is uncommented and left as it is changes nothing."""
    lines = section_lines(("t", "{config}"), env={}, knobs=(), redirected=())
    shown = [
        line.replace("# ", "", 1)
        for line in lines
        if re.match(r"  # (redirect|redirect_except|set|env|objective|trial|keep_\w+): ", line)
    ]
    assert len(shown) == 7
    section = read([lines[0], *shown, lines[-1]])
    assert section.trial == TrialLimits()
    kept = (section.redirect, section.redirect_except, section.fixed)
    assert kept == ([], [], {})


_TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=10)


@given(st.lists(_TEXT, min_size=1, max_size=4), _TEXT)
def test_command_and_variables_come_back(words: list[str], value: str) -> None:
    """Quotes, blanks, newlines, escapes: what was typed is what is run."""
    assume(not re.search(r"\\\r?\n", "".join(words)))  # see below
    lines = section_lines(("t", *words), env={"NAME": value}, knobs=(), redirected=())
    section = read(lines)
    assert split_command(str(section.command), "here") == ("t", *words)
    assert section.env == {"NAME": value}


def test_a_command_that_cannot_be_written_is_refused() -> None:
    """A backslash before a newline continues a line, wherever it stands."""
    with pytest.raises(ConfigError, match="cannot be written"):
        section_lines(("t", "a\\\nb"), env={}, knobs=(), redirected=())
