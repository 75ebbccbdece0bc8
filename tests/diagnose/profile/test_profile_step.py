"""Tests of ``autotune profile step`` with real trainers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.diagnose.step_profile import profile_shipped_step
from autotune.errors import TrialError
from autotune.workloads.tts.corpus import write_corpus

KERAS = Path(__file__).with_name("keras_trainer.py")
TOY = Path(__file__).parents[2] / "toys" / "toy_trainer.py"
PHASES = ["data", "copy to device", "forward", "loss", "backward", "optimizer"]


def profiled(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the profile of the config's trainer, its phases by name."""
    assert run(["profile", "step", "--config", str(config), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list((config.parent / ".autotune" / "trials").glob("*/*")) == []
    document["phases"] = {phase["name"]: phase for phase in document["phases"]}
    return dict(document)


def test_the_phases_of_the_shipped_step_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase of the shipped model's step has a time, or a reason; together they are about the step."""
    assert run(["profile", "step", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    phases = {phase["name"]: phase for phase in document["phases"]}
    assert list(phases) == [*PHASES, "the rest"]
    assert all((phase["median_ms"] is None) == bool(phase["why_not"]) for phase in phases.values())
    assert phases["forward"]["median_ms"] > 0
    assert 0.5 < document["adds_up"] < 2.0


def test_a_process_that_fails_says_so(tmp_path: Path) -> None:
    """The last line of a failed process is the error's, with what to do."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'tensorflow'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(TrialError, match="No module named 'tensorflow'"):
        profile_shipped_step(str(python))


@pytest.mark.services
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("xla", "way"), [(False, "graph, float32"), (True, "graph, compiled by XLA, float32")])
def test_the_step_of_a_keras_model_is_taken_apart(
    xla: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model of an unchanged trainer is timed as it trains, with its own batches and loss."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"batch_size: 16\nload_s: 0.005\nslow_every: 1000000\nxla: {str(xla).lower()}\neager: false\nepochs: 10000\n"
        f"autotune:\n  command: \"{sys.executable} '{KERAS}' {{config}}\"\n"
    )
    profile = profiled(config, capsys)
    assert list(profile["phases"]) == [*PHASES, "metrics", "the rest"]
    assert profile["of"] == "Keras's Sequential 'sequential'"
    assert profile["compiled"] == way
    assert profile["batch_size"] == 16
    assert profile["phases"]["forward"]["median_ms"] > 0
    assert profile["phases"]["backward"]["median_ms"] > 0
    assert profile["phases"]["copy to device"]["why_not"] == "there is no GPU"
    assert profile["steps"] > 50
    assert 0.3 < profile["adds_up"] < 3.0


@pytest.mark.services
@pytest.mark.timeout(300)
def test_the_step_of_the_reference_trainer_is_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer with `autotune.tf.TrainStep` is timed on its own batches."""
    monkeypatch.chdir(tmp_path)
    assert write_corpus(tmp_path / "corpus", clips=12)
    shipped = (Path(__file__).parents[3] / "configs" / "config.yaml").read_text()
    shipped = shipped.replace("batch_size: 8", "batch_size: 2")
    config = tmp_path / "config.yaml"
    config.write_text(shipped.replace("data/quickstart", str(tmp_path / "corpus")))
    profile = profiled(config, capsys)
    assert list(profile["phases"]) == [*PHASES, "the rest"]
    assert profile["of"] == "autotune.tf.TrainStep"
    assert profile["phases"]["data"]["median_ms"] is not None
    assert profile["phases"]["forward"]["median_ms"] > 0
    assert 0.3 < profile["adds_up"] < 3.0


def test_a_step_that_nobody_can_take_apart_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a trainer without such a framework, the length of the step is said, and why its parts are not."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        "data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}\n"
        f"autotune:\n  command: \"{sys.executable} '{TOY}' {{config}}\"\n"
    )
    profile = profiled(config, capsys)
    assert profile["step"]["median_ms"] > 0
    assert profile["adds_up"] is None
    assert "neither by Keras's fit" in profile["phases"]["forward"]["why_not"]


def test_a_trainer_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer that ends with an error has no profile; the trial's folder stays."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"batch_size: 1\nautotune:\n  command: \"{sys.executable} -c 'raise ValueError(7)' {{config}}\"\n"
    )
    assert run(["profile", "step", "--config", str(config), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "no step was seen" in error["message"]
    assert (Path(error["where"]) / "stderr.log").exists()
