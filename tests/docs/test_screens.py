"""Promises of the screens in the pages: none is typed by hand, and the commands print what stands there."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from autotune.config.document import Document
from autotune.config.schema import Source, parse_section
from scripts.documentation.reference import DOCS
from scripts.documentation.screens import CannotMakeScreen, Page, pages_with_screens

ROOT = DOCS.parent
PAGES = pages_with_screens(DOCS)
_STILL_THE_SAME = ("file", "screen", "as in")


def _names(path: Path) -> str:
    return str(path.relative_to(DOCS))


def test_there_are_pages_with_screens() -> None:
    """The guides are among them."""
    assert {"quickstart.md", "oscillation.md", "your-trainer.md"} <= {_names(path) for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_every_block_is_made_or_tested(path: Path) -> None:
    """No block of code stands without its mark; a test that is named is there."""
    assert Page(path).unmarked() == []
    named = [block.options for block in Page(path).blocks() if block.kind == "tested by"]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_screens_that_measure_show_what_they_should(path: Path) -> None:
    """What stands in the page has the patterns that the command has to print."""
    for block in Page(path).blocks():
        for pattern in block.patterns:
            assert re.search(pattern, block.text), (block.command, pattern)


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_screens_that_stay_the_same_are_what_the_commands_print(path: Path) -> None:
    """Files, quoted blocks and commands that measure nothing are made again, up to what measures."""
    for block, text in Page(path).made(until_timed=True):
        assert block.kind not in _STILL_THE_SAME or block.text == text


@pytest.mark.services
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_all_commands_do_what_the_page_says(path: Path) -> None:
    """Each command is run; those that measure end as they should, and show what they should."""
    for block, text in Page(path).made():
        assert text or block.first is None


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_blocks_that_are_not_run_can_be(path: Path) -> None:
    """YAML holds a section that is accepted, Python parses, and commands are those that autotune has."""
    from autotune.cli import command_line

    for block in Page(path).blocks():
        if block.kind != "tested by":
            continue
        if block.language == "yaml":
            assert parse_section(Source(Document(block.text, name="page"), ("autotune",))).command
            yaml.safe_load(block.text)
        elif block.language == "python":
            ast.parse(block.text)
        else:
            typed = re.findall(r"^autotune (\w+)", block.text, re.MULTILINE)
            assert set(typed) <= set(command_line.list_commands(None))  # type: ignore[arg-type]


def test_a_command_that_does_not_print_what_it_should_is_noticed(tmp_path: Path) -> None:
    """So is one that ends with another status than the page says."""
    page = tmp_path / "page.md"
    for mark in ('timed "nothing like it" => echo hello', "screen: false"):
        page.write_text(f"<!-- project: quickstart -->\n<!-- {mark} -->\n```text\n```\n")
        with pytest.raises(CannotMakeScreen):
            list(Page(page).made())


def test_screens_are_written_into_their_blocks(tmp_path: Path) -> None:
    """Blocks are replaced in place, the rest of the page stays, and a cut is a cut."""
    page = tmp_path / "page.md"
    mark = r"<!-- screen: printf 'a\nb\nc\n' #from b -->"
    page.write_text(f"# A\n\n<!-- project: quickstart -->\n{mark}\n```text\nold\n```\n\nEnd\n")
    Page(page).write_screens()
    assert page.read_text().endswith("```text\n$ printf 'a\\nb\\nc\\n'\nb\nc\n```\n\nEnd\n")
