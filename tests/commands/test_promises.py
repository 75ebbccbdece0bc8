"""Promises of the documentation that no other test of a command holds."""

import re
import sys
from pathlib import Path

import pytest

from autotune.search import problem
from tests.command_line import CommandLine


def test_a_config_that_is_wrong_fails_a_pipeline(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """``diagnose --static`` ends with 1: the trainer reads another key than the config has."""
    monkeypatch.setattr(problem, "framework_versions", lambda *_: {})  # none has to be imported to ask it
    (simulated.folder / "train.py").write_text('print(config["data"]["batch_size"])\n')
    words = ("diagnose", "--config", "own.yaml", "--static", "--json", "--", sys.executable, "train.py", "{config}")
    for key, code in (("batch_sze", 1), ("batch_size", 0)):
        (simulated.folder / "own.yaml").write_text(f"data: {{{key}: 8}}\n")
        done = simulated(*words)
        assert done.returncode == code
        assert ("batch_sze looks like a slip" in done.document["verdict"]["sentence"]) is bool(code)


def test_what_changes_a_queue_says_it_as_an_object(
    simulated: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pause``, ``resume`` and ``remove`` with ``--json``, each with the entry as it is then."""
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(tmp_path / "daemon"))
    added = simulated("queue", "add", "--config", "config.yaml", "--budget", "60s", "--no-check", "--json")
    number = str(added.document["entry"]["number"])
    for verb in ("pause", "resume", "remove"):
        done = simulated("queue", verb, number, "--json")
        assert done.returncode == 0, done.stderr
        assert number in str(done.document)


def test_init_offers_variables_where_nothing_else_varies(simulated: CommandLine) -> None:
    """As comments, by what the script imports: nothing of it holds until the signs are taken away."""
    config = simulated.folder / "config.yaml"
    (simulated.folder / "train.py").write_text("import tensorflow as tf\n")
    config.write_text("lr: 0.1\n")
    trainer = ("--", sys.executable, "train.py", "config.yaml")
    assert simulated("init", "--config", "config.yaml", "--yes", "--no-preflight", *trainer).returncode == 0
    text = config.read_text()
    assert "  #   autotune.env.TF_XLA_FLAGS: [" in text
    assert "OMP_NUM_THREADS" not in text
    assert simulated("search", "--config", "config.yaml", "--dry-run").returncode == 1
    config.write_text(re.sub(r"^  # (knobs:|env:|  )", r"  \1", text, flags=re.MULTILINE))
    shown = simulated("search", "--config", "config.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "autotune.env.TF_XLA_FLAGS" in shown.stdout
