"""Promises of the pages that are made from the code: they say what the code says, and all of it."""

import re

import pytest
import yaml

from autotune.config.schema import SectionKeys, TrialLimits
from scripts.documentation.reference import DOCS, PAGES, page_text

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_pages_say_what_the_code_says(name: str) -> None:
    """A page that differs is written anew by ``scripts/docs --reference``."""
    assert (DOCS / name).read_text(encoding="utf-8") == page_text(name)


def test_no_other_page_passes_for_one() -> None:
    """The folder holds these pages and no other."""
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == set(PAGES)


def test_every_row_has_a_meaning() -> None:
    """No key stands without its meaning, so that a field without a docstring is noticed."""
    rows = [line for line in (DOCS / "reference/section.md").read_text().splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if row.rstrip(" |").endswith("|") or not row.split(" | ")[-1].strip(" |")] == []
    keys = [line for line in (DOCS / "reference/json.md").read_text().splitlines() if line.startswith("* `")]
    assert keys
    assert [key for key in keys if not re.search(r": \S", key)] == []


@pytest.mark.parametrize("table", ["docs/safety.md", "tests/promises.md"])
def test_every_promise_has_its_test(table: str) -> None:
    """Each test that a table names is there."""
    named = re.findall(r"`(?:tests/)?([\w/]+\.py)::(?:\w+::)?(\w+)", (ROOT / table).read_text())
    assert len(named) > 10
    tests = ROOT / "tests"
    assert [(path, name) for path, name in named if f"def {name}(" not in (tests / path).read_text()] == []


def test_the_page_on_the_config_knows_every_key_of_the_section() -> None:
    """Its example has them all, with those of a trial."""
    example = (DOCS / "config.md").read_text().split("```yaml\n")[1].split("```")[0]
    section = yaml.safe_load(example)["autotune"]
    assert section.keys() == set(SectionKeys.__struct_fields__)
    assert section["trial"].keys() == set(TrialLimits.__struct_fields__)
