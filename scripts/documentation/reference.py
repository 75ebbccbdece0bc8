"""Reference pages, generated from the tables of the code."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.documentation.checks_page import checks_page
from scripts.documentation.commands_page import commands_page
from scripts.documentation.json_page import json_page
from scripts.documentation.section_page import section_page
from scripts.documentation.words_page import endings_page, knobs_page, metrics_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
_NOTE = "<!-- Generated from the code by `scripts/docs --reference`. Do not edit. -->\n\n"

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/section.md": section_page,
    "reference/knobs.md": knobs_page,
    "reference/json.md": json_page,
    "reference/endings.md": endings_page,
    "reference/metrics.md": metrics_page,
    "reference/checks.md": checks_page,
}
"""Generators of the pages, by path below docs."""


def page_text(name: str) -> str:
    """Return the generated text of a page."""
    return f"{_NOTE}{PAGES[name]()}\n"


def write_pages() -> None:
    """Write all pages."""
    for name in PAGES:
        (DOCS / name).write_text(page_text(name), encoding="utf-8")
