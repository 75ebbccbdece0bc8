"""Studies of environment variables alone, and what ``init`` offers where a config has no knobs; real processes."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

TRAINER = """\
import os, time
from autotune.trainee import step
while True:
    time.sleep(0.004 * int(os.environ["OMP_NUM_THREADS"]))
    step(samples=4)
"""
SECTION = """\
autotune:
  command: "{python} train.py"
  env: {OMP_NUM_THREADS: 4}
  knobs: {autotune.env.OMP_NUM_THREADS: [1, 4]}
  trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""


@pytest.mark.services
@pytest.mark.parametrize("above", ["", "lr: 0.1\n"], ids=["the section alone", "a config without knobs"])
def test_a_variable_is_all_that_varies(project: Path, autotune: Autotune, above: str) -> None:
    """The command takes no config, and the file may hold nothing else: what is tuned comes by the environment."""
    (project / "train.py").write_text(TRAINER)
    (project / "config.yaml").write_text(above + SECTION)
    done = autotune("search", "--config", "config.yaml", "--budget", "60s", "--json")
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "better", done.stderr
    assert answer["best"]["values"] == {"autotune.env.OMP_NUM_THREADS": 1}
    assert autotune("apply", "--config", "config.yaml").returncode == 0
    assert "env: {OMP_NUM_THREADS: 1}" in (project / "config.yaml").read_text()


def test_a_command_without_config_is_refused_where_a_key_varies(project: Path, autotune: Autotune) -> None:
    """Its value would never reach the trainer."""
    (project / "train.py").write_text(TRAINER)
    more = SECTION.replace("knobs: {", "knobs: {lr: [0.1, 0.2], ")
    (project / "config.yaml").write_text("lr: 0.1\n" + more)
    done = autotune("search", "--config", "config.yaml", "--budget", "10s")
    assert done.returncode == 1
    assert "names neither {config}" in done.stderr


def _offered(project: Path, autotune: Autotune, imported: str, *env: str) -> str:
    (project / "train.py").write_text(f"import {imported}\n")
    (project / "config.yaml").write_text("lr: 0.1\n")
    words = ("--", *env, sys.executable, "train.py", "config.yaml")
    assert autotune("init", "--config", "config.yaml", "--yes", "--no-preflight", *words).returncode == 0
    return (project / "config.yaml").read_text()


def test_init_offers_variables_where_nothing_else_varies(project: Path, autotune: Autotune) -> None:
    """As comments, by what the script imports: nothing of it holds until the signs are taken away."""
    text = _offered(project, autotune, "tensorflow as tf")
    assert "  #   autotune.env.TF_XLA_FLAGS: [" in text
    assert "OMP_NUM_THREADS" not in text
    assert autotune("search", "--config", "config.yaml", "--dry-run").returncode == 1
    (project / "config.yaml").write_text(re.sub(r"^  # (knobs:|env:|  )", r"  \1", text, flags=re.MULTILINE))
    shown = autotune("search", "--config", "config.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "autotune.env.TF_XLA_FLAGS" in shown.stdout
