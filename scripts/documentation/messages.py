"""Messages that the source can say: ids and English templates, collected from it."""

import ast
from pathlib import Path

import autotune
from autotune.diagnose.code_scan import RULES
from autotune.diagnose.diagnosis import CHECKS
from autotune.diagnose.findings import Severity
from autotune.space.catalog import KNOWN_KNOBS
from autotune.space.knob import Label

PACKAGE = Path(autotune.__file__).parent


def english_templates() -> list[tuple[str, str]]:
    """Return id and template of each message: those in calls of `said`, and those of the tables."""
    found = [pair for path in sorted(PACKAGE.rglob("*.py")) for pair in _said_in(path)]
    found += [(f"check.{check.id}", check.question) for check in CHECKS]
    found += [(rule.message_id, rule.sentence) for rule in RULES]
    found += [(f"{rule.message_id}.remedy", rule.remedy) for rule in RULES]
    found += [(f"knob.{row.kind}", row.sentence) for row in KNOWN_KNOBS]
    found += [(f"severity.{one.value}", one.value) for one in Severity]
    found += [(f"label.{one.value}", one.value) for one in Label]
    return found + [(separator, separator) for separator in _separators()]


def _said_in(path: Path) -> list[tuple[str, str]]:
    return [
        tuple(argument.value for argument in call.args[:2])  # type: ignore[attr-defined,misc]
        for call in _calls(path, "said")
    ]


def _separators() -> set[str]:
    calls = [call for path in sorted(PACKAGE.rglob("*.py")) for call in _calls(path, "listed")]
    return {call.args[0].value for call in calls}  # type: ignore[attr-defined]


def _calls(path: Path, name: str) -> list[ast.Call]:
    text = path.read_text(encoding="utf-8")
    if f"{name}(" not in text:  # most files have none, and parsing takes its time
        return []
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and len(node.args) == 2
    ]
