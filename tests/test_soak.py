"""Short forms of the commands of tests/soak.py that look for what nobody thought of."""

from pathlib import Path

import pytest

from autotune.cli import run
from tests.soak_edits import fuzz
from tests.soak_odd_files import Project, odd_projects


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
