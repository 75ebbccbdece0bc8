"""Diagnosis as one JSON object, for scripts."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.diagnose.checks import CHECKS
from autotune.diagnose.findings import CheckResult, Diagnosis
from autotune.report.json_answer import FORMAT


def diagnosis_document(
    diagnosis: Diagnosis, *, elapsed_s: float | None, failed_on: str | None, paths: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the object of ``diagnose --json``.

    Args:
        diagnosis: What was found.
        elapsed_s: Time that it took, in seconds; None where that is not told.
        failed_on: The condition of ``--fail-on``, if it holds; else None.
        paths: Files and folders, by purpose.
    """
    return {
        "format": FORMAT,
        "verdict": asdict(diagnosis.verdict),
        "checks": [_check(result) for result in diagnosis.results],
        "recommendations": [{**asdict(one), "values": dict(one.values)} for one in diagnosis.recommendations],
        "failed_on": failed_on,
        "elapsed_s": elapsed_s,
        "paths": dict(paths),
    }


def _check(result: CheckResult) -> dict[str, Any]:
    row = next(check for check in CHECKS if check.id == result.check)
    return {
        "id": result.check,
        "question": row.question,
        "issues": [asdict(issue) for issue in result.issues],
        "sentence": result.sentence or None,
        "why_not": result.why_not or None,
    }
