"""Warm starts as their user sees them: said before the first trial, and left out when asked."""

from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

SEARCH = ("search", "--config", "config.yaml")
BEGINS = "A search begins with "


@pytest.mark.services
def test_a_search_begins_with_what_another_config_of_the_command_showed(project: Path, autotune: Autotune) -> None:
    """Its best point is the first one tried; --no-warm-start, --fresh and another command begin from nothing."""
    assert BEGINS not in autotune(*SEARCH, "--budget", "60s").stderr
    config = project / "config.yaml"
    config.write_text(f"layers: 3\n{config.read_text()}")
    assert "a study of another config of the same command on " in autotune(*SEARCH, "--dry-run").stdout
    for option in ("--no-warm-start", "--fresh"):
        assert BEGINS not in autotune(*SEARCH, "--dry-run", option).stdout
    second = autotune(*SEARCH, "--budget", "20s")
    assert BEGINS in second.stderr
    assert "The answer is the 1st point that was tried; it came from a study of another config" in second.stderr
