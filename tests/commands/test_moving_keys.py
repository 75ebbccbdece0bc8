"""Knobs that are no single key of the config: a variable of the environment, a batch that accumulation makes up for."""

import json
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

TRAINER = """\
import os, sys, time, yaml
from autotune.trainee import step

with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)
batch = config["batch_size"]
assert batch * config["grad_accum"] in (32, 64)
assert os.environ["OTHER"] == "on"
while True:
    time.sleep((0.04 if os.environ["MODE"] == "slow" else 0.004) + 0.0005 * batch)
    step(samples=batch)
"""
CONFIG = """\
batch_size: 8   # at once
grad_accum: 4   # times that
autotune:
  command: "'%s' train.py {config}"
  keep_effective_batch: true
  knobs:
    batch_size: [4, 8, 12, 16, 32]
    autotune.env.MODE: [slow, fast]
  env: {MODE: slow, OTHER: on}
  trial: {min_s: 0.15, max_s: 0.5}
"""


@pytest.mark.services
@pytest.mark.parametrize("separate", [False, pytest.param(True, marks=pytest.mark.services)])
def test_they_are_searched_applied_and_trained_with(project: Path, autotune: Autotune, separate: bool) -> None:
    """The trainer checks each trial; apply writes where values live, run starts with them, revert takes them back."""
    config, beside = project / "config.yaml", project / "config.autotune.yaml"
    (project / "train.py").write_text(TRAINER)
    keys, section = (CONFIG % sys.executable).split("autotune:\n", 1)
    config.write_text(keys if separate else f"{keys}autotune:\n{section}")
    if separate:
        beside.write_text(f"autotune:\n{section}")
    before = {path: path.read_text() for path in (config, *([beside] if separate else []))}

    searched = autotune("search", "--config", "config.yaml", "--budget", "60s", "--json")
    answer = json.loads(searched.stdout)
    assert answer["verdict"] == "better", searched.stderr
    assert answer["best"]["values"] == {"batch_size": 32, "autotune.env.MODE": "fast"}
    assert answer["same_training"]["values"]["batch_size"] == 32
    assert set(answer["outcomes"]) == {"stopped"}

    assert autotune("apply", "--config", "config.yaml").returncode == 0
    where = beside if separate else config
    assert config.read_text().startswith("batch_size: 32   # at once\ngrad_accum: 1   # times that\n")
    assert where.read_text().endswith(section.replace("MODE: slow", "MODE: fast"))
    assert "Nothing to do" in autotune("apply", "--config", "config.yaml").stdout
    started = autotune("run", "--config", "config.yaml", "--dry-run").stdout
    assert started.startswith("MODE=fast OTHER=on ")

    for path in before:
        assert autotune("revert", "--config", path.name).returncode == 0
    assert {path: path.read_text() for path in before} == before


def test_trials_with_another_accumulation_are_not_applied(project: Path, autotune: Autotune) -> None:
    """An accumulation edited since makes all earlier points others: they are neither pooled nor written."""
    config = project / "config.yaml"
    (project / "train.py").write_text(TRAINER)
    config.write_text(CONFIG % sys.executable)
    searched = autotune("search", "--config", "config.yaml", "--budget", "6s", "--json")
    assert searched.returncode == 0, searched.stderr

    edited = config.read_text().replace("grad_accum: 4", "grad_accum: 8")
    config.write_text(edited)
    refused = autotune("apply", "--config", "config.yaml", "--trial", "1", "--force")
    assert refused.returncode == 1
    assert "grad_accum" in refused.stderr
    assert config.read_text() == edited
