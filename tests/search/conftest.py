"""Fixtures of the tests of searches."""

from pathlib import Path

import pytest

from autotune.search.problem import Problem, open_problem
from tests.search.simulated import CONFIG


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Problem of a search that is about to begin, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    opened = open_problem(Path("config.yaml"), command=None, state_dir=None)
    opened.state.create()
    return opened
