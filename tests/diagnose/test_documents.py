"""Promises of docs/diagnose.md; docs/reference/checks.md is generated."""

import re
from pathlib import Path

from autotune.diagnose.tables import RULES
from autotune.search.traps import TRAPS

TEXT = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()


def test_every_rule_and_every_trap_is_described() -> None:
    """Each has a row in a table, and no row is about one that is gone."""
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    assert rows == [*dict.fromkeys(rule.id for rule in RULES), *(trap.id for trap in TRAPS)]
