"""Short forms of the commands of tests/soak.py that look for what nobody thought of."""

from pathlib import Path

import pytest

from autotune.cli import run
from tests.soak_answers import make_orders
from tests.soak_edits import fuzz
from tests.soak_odd_files import Project, odd_projects
from tests.soak_standing import make_sequences


def test_some_hundred_edits() -> None:
    """Each is exact or refused, whatever the text and the value."""
    outcome = fuzz(600, "suite")
    assert outcome.wrong == []
    assert outcome.counts["exact, confirmed by PyYAML and ruamel.yaml"] > 200
    assert outcome.counts["refused"] > 50


@pytest.mark.parametrize("project", odd_projects(140, seed=0), ids=lambda project: project.name[:40])
def test_odd_files(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command that only reads takes one for a bug."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_bytes(project.config)
    Path("train.py").write_text("")
    for command in (("search", "--dry-run"), ("status",), ("revert",)):
        assert run([*command, "--config", "config.yaml"]) in (0, 1)
    typed = ["search", "--dry-run", "--config", "config.yaml", "--", *project.words]
    assert run(typed) in (0, 1)


def test_what_stands_in_the_file_was_judged() -> None:
    """Whatever is searched, edited, applied, reverted and imported, in whichever order, and by whom."""
    outcome = make_orders(2, seed=1)
    assert outcome.violations == []
    assert outcome.counts["answers told"] > 3


def test_the_standing_answer_gets_no_worse() -> None:
    """Whatever searches are made after it: another point takes its place only if it truly is as good."""
    outcome = make_sequences(2, seed=1)
    assert outcome.violations == []
    assert outcome.counts["searches"] > 5
