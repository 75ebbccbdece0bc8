"""Promises of the documentation site: it builds without a warning, fetches nothing, and its links lead somewhere."""

import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import pytest

from scripts.documentation.built import faults_of
from scripts.documentation.reference import DOCS

ROOT = DOCS.parent
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the tools that build it
def test_it_builds_without_a_warning_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    """Warnings end the build; then the pages themselves are read for links, anchors and what a browser would fetch."""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    from scripts.documentation.__main__ import build

    assert build(tmp_path / "site") == 0


def test_a_page_that_fetches_or_leads_nowhere_is_a_fault(tmp_path: Path) -> None:
    """A script from elsewhere, a missing picture, page and anchor are each named; what is there is not."""
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><script src="https://example.org/x.js"></script><img src="no.png"><a href="#top">a</a>'
        '<a href="other.html">b</a><a href="#none">c</a><a href="https://example.org/">d</a>'
    )
    faults = faults_of(tmp_path)
    assert [re.findall(r"https://example.org/x.js|no.png|other.html|#none", fault) for fault in faults] == [
        ["https://example.org/x.js"], ["no.png"], ["other.html"], ["#none"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_links_of_the_files_beside_it_lead_somewhere(name: str) -> None:
    """Pages that only the code host shows are checked by its rules for anchors."""
    if not (ROOT / name).exists():
        pytest.skip("there is none")
    for link in _LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        path, _, anchor = unquote(link).partition("#")
        if "://" in path:
            continue
        target = ROOT / path if path else ROOT / name
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    """Return the anchors that the code host gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {_anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings}


def _anchor(heading: str) -> str:
    kept = (char for char in heading.lower() if char in " -_" or unicodedata.category(char)[0] in "LN")
    return "".join(kept).replace(" ", "-")
