"""Applying values whose config became another meanwhile."""

from pathlib import Path

import pytest

from autotune.commands.apply_answer import apply_values
from autotune.errors import ConfigError
from autotune.report.console import text_console
from autotune.search.answer import changes_from_now
from autotune.search.problem import open_problem


def test_values_are_not_written_into_a_config_that_became_another_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key besides the knobs was edited while they were searched for: they are of the training that was."""
    monkeypatch.chdir(tmp_path)
    config = Path("config.yaml")
    config.write_text("model: {width: 64}\nbatch_size: 8\nautotune: {knobs: {batch_size: [8, 16]}}\n")
    problem = open_problem(config, command=None, state_dir=None)
    found = changes_from_now(problem, {"batch_size": 16})
    edited = config.read_text().replace("64", "128")
    config.write_text(edited)
    with pytest.raises(ConfigError, match="found for another training"):
        apply_values(problem, found, text_console())
    assert config.read_text() == edited
