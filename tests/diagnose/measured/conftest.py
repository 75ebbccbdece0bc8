"""What holds for every sentence of a diagnosis: its numbers are those on record."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.diagnose import findings, phased_checks, place_checks, step_checks, surroundings
from autotune.diagnose.findings import Issue, milliseconds, percent

_BOUNDS = re.compile(r"[\d.]+x \([\d.]+ to [\d.]+\)|more than \d+x")  # told from the bound itself


@pytest.fixture(autouse=True)
def _every_number_is_on_record(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Recompute the shares and the times in each sentence from the issue's numbers."""
    made: list[Issue] = []

    def recorded(*args: Any, **kwargs: Any) -> Issue:
        made.append(findings.issue(*args, **kwargs))
        return made[-1]

    for module in (phased_checks, place_checks, step_checks, surroundings):
        monkeypatch.setattr(module, "issue", recorded)
    yield
    for one in made:
        told = _BOUNDS.sub("", one.sentence)
        known = {percent(value) for value in one.numbers.values() if value < 1e4}
        known |= {milliseconds(value) for value in one.numbers.values()}
        said = set(re.findall(r"\d+(?:\.\d+)? (?:%|ms)", told))
        assert said <= known, (one.sentence, one.numbers)
