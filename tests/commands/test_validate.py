"""``search --validate`` over a real trainer whose fastest values break after seconds."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune
from tests.commands.test_search import left_running

SEARCH = ("search", "--config", "config.yaml", "--budget", "100s")


@pytest.mark.services
def test_what_breaks_at_its_first_checkpoint_is_not_the_answer(project: Path, autotune: Autotune) -> None:
    """The next best is, as soon as it has come through; screens, JSON and `apply` agree."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "breaks_at: 64\nout:"))
    answer = json.loads(autotune(*SEARCH, "--validate", "20s", "--json").stdout)
    assert answer["elapsed_s"] < 100
    broken = [*answer["broken"], *([{"validation": answer["validation"]}] if answer["verdict"] != "better" else [])]
    assert "No space left on device" in broken[0]["validation"]["broke"][0]
    assert answer["best"]["values"]["data.batch_size"] != 64
    known = autotune("status", "--config", "config.yaml")
    assert "broke in a longer training" in known.stdout
    assert "No space left on device" in known.stdout
    before = config.read_bytes()
    assert autotune("apply", "--config", "config.yaml", "--all").returncode == 0  # it was not raced
    assert (config.read_bytes() != before) is (answer["verdict"] == "better")
    assert b"batch_size: 64" not in config.read_bytes()
    assert left_running(project) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--validate", "2m"), "--validate: to validate trains two configs for up to 2m each"),
        (("--validate",), "--validate: to validate trains two configs for up to 2m each"),
        (("--validate", "0"), "'0' is not"),
        (("--validate", "soon"), "'soon' is not a duration"),
    ],
)
def test_wrong_usage_is_said_before_anything_starts(
    project: Path, autotune: Autotune, typed: tuple[str, ...], said: str
) -> None:
    """The time does not fit into the budget, or is none."""
    refused = autotune(*SEARCH, *typed)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert not (project / ".autotune").exists()
