"""Promises of docs/diagnose.md."""

import re
from pathlib import Path

from autotune.diagnose.tables import MEASURED_CHECKS, RULES, STATIC_CHECKS
from autotune.search.traps import TRAPS

TEXT = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()


def test_every_check_and_every_rule_is_described() -> None:
    """Each has a row in a table, and no row is about one that is gone."""
    rows = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    assert rows == [
        *(check.id for check in (*MEASURED_CHECKS, *STATIC_CHECKS)),
        *dict.fromkeys(rule.id for rule in RULES),
        *(trap.id for trap in TRAPS),
    ]
