"""Promises of the documentation that no other test of a command holds."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands.conftest import Autotune, answered


def values_in(project: Path) -> dict[str, Any]:
    """Return the values that the config has now."""
    data = yaml.safe_load((project / "config.yaml").read_text())["data"]
    return {f"data.{key}": value for key, value in data.items()}


def test_apply_writes_the_values_of_the_trial_that_was_named(
    project: Path, autotune: Autotune, searched: dict[str, Any]
) -> None:
    """Any trial's, whatever the answer is."""
    now = values_in(project)
    results = [json.loads(path.read_text()) for path in (project / ".autotune").rglob("result.json")]
    trial = next(one for one in results if one["values"] != now and one["ending"] == "stopped")
    done = autotune("apply", "--config", "config.yaml", "--trial", str(trial["number"]), "--force")
    assert done.returncode == 0, done.stderr
    assert values_in(project) == trial["values"]


def test_revert_shows_what_it_would_write_and_writes_nothing(
    project: Path, autotune: Autotune, searched: dict[str, Any]
) -> None:
    """With ``--dry-run``; without it the config is what it was, byte for byte."""
    config = project / "config.yaml"
    before = config.read_text()
    assert autotune("apply", "--config", "config.yaml", "--force").returncode == 0
    applied = config.read_text()
    shown = autotune("revert", "--config", "config.yaml", "--dry-run")
    assert (shown.returncode, config.read_text()) == (0, applied)
    changed = next(line for line in before.splitlines() if line not in applied.splitlines())
    assert changed.strip() in shown.stdout + shown.stderr
    assert autotune("revert", "--config", "config.yaml").returncode == 0
    assert config.read_text() == before


@pytest.mark.parametrize(("answer", "is_taken_back"), [(b"n\n", False), (b"y\n", True)])
def test_revert_asks_before_it_takes_back_what_was_edited_since(
    project: Path, autotune: Autotune, searched: dict[str, Any], answer: bytes, is_taken_back: bool
) -> None:
    """The user's own value stays where the answer is no."""
    config, before = project / "config.yaml", values_in(project)
    assert autotune("apply", "--config", "config.yaml", "--force").returncode == 0
    path, value = next((path, value) for path, value in values_in(project).items() if value != before[path])
    key, own = path.partition(".")[2], value + 100
    config.write_text(config.read_text().replace(f"{key}: {value}", f"{key}: {own}"))
    assert values_in(project)[path] == own
    answered(project, {b"[y/N]": answer}, "revert", "--config", "config.yaml")
    assert values_in(project)[path] == (before[path] if is_taken_back else own)


def test_outputs_of_trials_stay_where_the_section_keeps_them(project: Path, autotune: Autotune) -> None:
    """What a trainer wrote into its folder is there after its end, and today's folder is untouched."""
    config = project / "config.yaml"
    config.write_text(config.read_text() + "    keep_outputs: true\n")
    done = autotune("search", "--config", "config.yaml", "--budget", "10s", "--no-apply", "--sampler", "random")
    assert "trial" in done.stderr
    kept = [path for path in (project / ".autotune").rglob("outputs/*") if path.is_dir()]
    assert kept
    assert not (project / "logs").exists()


def test_a_config_that_is_wrong_fails_a_pipeline(project: Path, autotune: Autotune) -> None:
    """``diagnose --static`` ends with 1: the trainer reads another key than the config has."""
    (project / "train.py").write_text('print(config["data"]["batch_size"])\n')
    config = project / "own.yaml"
    config.write_text("data: {batch_sze: 8}\n")
    words = ("diagnose", "--config", "own.yaml", "--static", "--json", "--", sys.executable, "train.py", "{config}")
    done = autotune(*words)
    assert "batch_sze looks like a slip" in json.loads(done.stdout)["verdict"]["sentence"]
    assert done.returncode == 1
    config.write_text("data: {batch_size: 8}\n")
    assert autotune(*words).returncode == 0


def test_what_changes_a_queue_says_it_as_an_object(project: Path, autotune: Autotune, tmp_path: Path) -> None:
    """``pause``, ``resume`` and ``remove`` with ``--json``, each with the entry as it is then."""
    env = {"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")}
    added = json.loads(
        autotune("queue", "add", "--config", "config.yaml", "--budget", "60s", "--no-check", "--json", env=env).stdout
    )
    entry = str(added["entry"]["number"])
    for verb in ("pause", "resume", "remove"):
        done = autotune("queue", verb, entry, "--json", env=env)
        assert done.returncode == 0, done.stderr
        assert entry in json.dumps(json.loads(done.stdout))
