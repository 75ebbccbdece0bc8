"""Tests of ``autotune profile step`` with real trainers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.diagnose.step_profile import profile_shipped_step
from autotune.errors import TrialError
from tests.diagnose.profile.conftest import KERAS, TORCH, TOY, Profiled, shipped, started
from tests.trainee.conftest import interpreter_with

PHASES = ["data", "copy to device", "forward", "loss", "backward", "optimizer"]
LOAD_S = 0.0005
BATCH = 16


@pytest.mark.services
def test_the_phases_of_the_shipped_step_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase of the shipped model's step has a time, or a reason; together they are about the step."""
    assert run(["profile", "step", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    phases = {phase["name"]: phase for phase in document["phases"]}
    assert list(phases) == [*PHASES, "the rest"]
    assert all((phase["median_ms"] is None) == bool(phase["why_not"]) for phase in phases.values())
    assert phases["forward"]["median_ms"] > 0
    assert 0.5 < document["adds_up"] < 2.0
    assert document["slowest"][0]["ms"] > 0
    assert ".py:" in document["slowest"][0]["place"]


def test_a_process_that_fails_says_so(tmp_path: Path) -> None:
    """The last line of a failed process is the error's, with what to do."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'tensorflow'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(TrialError, match="No module named 'tensorflow'"):
        profile_shipped_step(str(python))


@pytest.mark.services
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("xla", "way"), [("false", "graph, float32"), ("true", "graph, compiled by XLA, float32")])
def test_the_step_of_a_keras_model_is_taken_apart(xla: str, way: str, profiled: Profiled) -> None:
    """The model of an unchanged trainer is timed as it trains, with its own batches and loss."""
    config = f"batch_size: 16\nload_s: 0.005\nslow_every: 1000000\nxla: {xla}\neager: false\nepochs: 10000"
    profile = profiled("step", started(KERAS, config))
    assert list(profile["phases"]) == [*PHASES, "metrics", "the rest"]
    assert (profile["of"], profile["compiled"]) == ("Keras's Sequential 'sequential'", way)
    assert profile["batch_size"] == 16
    assert profile["phases"]["forward"]["median_ms"] > 0
    assert profile["phases"]["backward"]["median_ms"] > 0
    assert profile["phases"]["copy to device"]["why_not"] == "there is no GPU"
    assert profile["steps"] > 50
    assert 0.3 < profile["adds_up"] < 3.0
    assert any("Conv" in one["what"] or "MatMul" in one["what"] for one in profile["slowest"])


@pytest.mark.services
@pytest.mark.timeout(300)
def test_the_step_of_the_reference_trainer_is_taken_apart(tmp_path: Path, profiled: Profiled) -> None:
    """A trainer with `autotune.tf.TrainStep` is timed on its own batches."""
    profile = profiled("step", shipped(tmp_path))
    assert list(profile["phases"]) == [*PHASES, "the rest"]
    assert profile["of"] == "autotune.tf.TrainStep"
    assert profile["phases"]["data"]["median_ms"] is not None
    assert profile["phases"]["forward"]["median_ms"] > 0
    assert 0.3 < profile["adds_up"] < 3.0


@pytest.mark.services
def test_a_step_that_nobody_can_take_apart_is_not_measured(profiled: Profiled) -> None:
    """Of a trainer without such a framework, the length of the step is said, and why its parts are not."""
    config = "data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}"
    profile = profiled("step", started(TOY, config))
    assert profile["step"]["median_ms"] > 0
    assert profile["adds_up"] is None
    assert "neither by Keras's fit" in profile["phases"]["forward"]["why_not"]


def test_a_trainer_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trainer that ends with an error has no profile; the trial's folder stays."""
    monkeypatch.chdir(tmp_path)
    command = f"{sys.executable} -c 'raise ValueError(7)' {{config}}"
    Path("config.yaml").write_text(f'batch_size: 1\nautotune:\n  command: "{command}"\n')
    assert run(["profile", "step", "--config", "config.yaml", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "no step was seen" in error["message"]
    assert (Path(error["where"]) / "stderr.log").exists()


def of_torch(profiled: Profiled, style: str) -> dict[str, Any]:
    """Return the profile of a PyTorch trainer in that style."""
    config = json.dumps({"style": style, "batch_size": BATCH, "load_s": LOAD_S, "out_dir": "out"})
    command = (interpreter_with("torch"), str(TORCH), "{config}")
    return profiled("step", config, "--", *command, file="config.json")


@pytest.mark.services
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("style", "way"),
    [
        ("plain", "eager, float32"),
        ("compiled", "torch.compile, float32"),
        ("mixed", "eager, float32, autocast to bfloat16"),
        ("accumulated", "eager, float32, 4 batches a step"),
        *((style, "eager, float32") for style in ("adversarial", "closure", "checkpointed", "validated")),
    ],
)
def test_the_step_of_a_loop_is_taken_apart(style: str, way: str, profiled: Profiled) -> None:
    """Each phase of an unchanged loop of PyTorch has its time; together they are about the step."""
    profile = of_torch(profiled, style)
    of = "PyTorch's Linear" if style == "checkpointed" else "PyTorch's Net"
    assert (profile["of"], profile["compiled"], profile["batch_size"]) == (of, way, BATCH)
    phases = profile["phases"]
    assert list(phases) == [*PHASES, "the rest"]
    assert phases["copy to device"]["why_not"] == "there is no GPU"
    batches = 4 if style == "accumulated" else 1
    assert phases["data"]["median_ms"] >= batches * BATCH * LOAD_S * 1000
    assert all(phases[name]["median_ms"] > 0 for name in ("forward", "loss", "backward", "optimizer"))
    assert phases["backward"]["median_ms"] > phases["loss"]["median_ms"]
    assert profile["steps"] > 20
    assert 0.7 < profile["adds_up"] < 1.3
    assert abs(profile["marks_cost"]) < 0.5


@pytest.mark.services
@pytest.mark.timeout(200)
def test_batches_from_no_loader_are_the_rest(profiled: Profiled) -> None:
    """Where no fetch is seen, the steps go from update to update, and it is said that data was not measured."""
    profile = of_torch(profiled, "own_batches")
    assert "no fetch from a DataLoader" in profile["phases"]["data"]["why_not"]
    assert profile["phases"]["backward"]["median_ms"] > 0
    assert profile["batch_size"] is None
