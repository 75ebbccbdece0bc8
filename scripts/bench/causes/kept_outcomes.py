"""File of outcomes, a line each, so that a benchmark of many minutes goes on where it was left."""

import json
from collections.abc import Sequence
from pathlib import Path

from autotune.diagnose.findings import Limit
from scripts.bench.causes.cases import Case, Outcome


def read_outcomes(path: Path, cases: Sequence[Case]) -> list[Outcome]:
    """Return the outcomes in the file of those among these cases that have one, the last one of each."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    last = {row["name"]: row for row in rows}
    return [
        Outcome(
            case=case,
            limit=Limit(row["limit"]) if row["limit"] else None,
            sentence=row["sentence"],
        )
        for case in cases
        if (row := last.get(case.name)) is not None
    ]


def keep_outcome(path: Path, outcome: Outcome) -> None:
    """Add an outcome to the file."""
    row = {"name": outcome.case.name, "limit": outcome.limit, "sentence": outcome.sentence}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
