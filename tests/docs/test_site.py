"""Promises of the documentation site: it builds without a warning, fetches nothing, and its links lead somewhere."""

import fcntl
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from scripts.documentation.built import faults_of
from scripts.documentation.reference import DOCS
from tests.daemon.web.browser import chromium, complaints, text_of
from tests.until import until

ROOT = DOCS.parent
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Site, built once for all workers: as a process, for the tools that build it warn of themselves."""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
    folder = tmp_path_factory.getbasetemp().parent / f"site-{run}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "scripts.documentation", "--site", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.services
def test_it_builds_without_a_warning_and_every_link_leads_somewhere(site: Path) -> None:
    """Warnings end the build; then the pages themselves are read for links, anchors and what a browser would fetch."""
    assert (site / "index.html").exists()
    assert faults_of(site) == []


@pytest.mark.services
def test_pages_opened_as_files_can_be_searched(site: Path) -> None:
    """A word finds pages, English and Persian, without a server; the browser has nothing to complain of."""
    with chromium() as page:
        page.get((site / "index.html").as_uri())
        for word, where in (("oscillates", "oscillation.html"), ("نوسان", "fa/oscillation.html")):
            page.execute_script(
                "const field = document.querySelector('.md-search__input'); field.focus(); field.value = arguments[0];"
                "field.dispatchEvent(new KeyboardEvent('keyup'))",
                word,
            )
            until(lambda where=where: where in _found(page), f"{where} is not found")  # type: ignore[misc]
        assert text_of(page, ".md-search-result__meta")
        assert complaints(page) == []


def _found(page: Any) -> str:
    links = page.execute_script("return [...document.querySelectorAll('.md-search-result__link')].map((a) => a.href)")
    return "\n".join(links)


@pytest.mark.services
def test_pages_fit_a_telephone(site: Path) -> None:
    """No page is wider than 400 points, but for one of rounding: long lines of code scroll in their own block."""
    with chromium(width=400) as page:
        for name in ("index", "oscillation", "reference/json", "fa/quickstart", "fa/oscillation"):
            page.get((site / f"{name}.html").as_uri())
            assert page.execute_script("return document.documentElement.scrollWidth") <= 401, name


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
