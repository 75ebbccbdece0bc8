"""Tests of ``autotune profile step`` with real trainers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from tests.diagnose.profile.conftest import KERAS, LOOP, TORCH, TOY, Profiled, shipped, started
from tests.trainee.conftest import interpreter_with

LOAD_S = 0.0005
BATCH = 16
PHASES = ["data", "forward", "loss", "backward", "optimizer", "the rest"]


@pytest.mark.services
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["xla: false\neager: false", "xla: true\neager: false", "xla: false\neager: true"])
def test_the_operations_of_a_keras_model_are_seen(way: str, profiled: Profiled) -> None:
    """By TensorFlow's profiler, in an unchanged trainer; data is what the steps before it waited for."""
    config = f"batch_size: 16\nload_s: 0.005\nslow_every: 1000000\n{way}\nepochs: 10000"
    profile = profiled("step", started(KERAS, config))
    is_a_graph = way == "xla: false\neager: false"  # XLA makes one operation of it, and eager ones have no scopes
    assert list(profile["phases"]) == (PHASES if is_a_graph else ["data", "all but data"])
    assert (profile["framework"], profile["batch_size"], profile["why_not"]) == ("TensorFlow", 16, None)
    assert profile["phases"]["data"]["median_ms"] > 0
    assert profile["steps"] > 10
    assert sum(one["times"] for one in profile["operations"] if "conv" in one["name"].lower()) >= 3
    assert profile["operations"][0]["host_ms"] > 0


@pytest.mark.services
@pytest.mark.timeout(300)
def test_the_phases_of_a_loop_of_tensorflow_are_those_of_its_graph(profiled: Profiled) -> None:
    """A compiled step with a loss of its own, in a loop that reports nothing."""
    profile = profiled("step", started(LOOP, "log_every: 50"))
    phases = profile["phases"]
    assert list(phases) == PHASES
    assert all(phases[name]["median_ms"] > 0 for name in ("forward", "loss", "backward", "optimizer"))
    assert phases["loss"]["median_ms"] < phases["backward"]["median_ms"]
    assert sum(one["mean_ms"] for one in phases.values()) == pytest.approx(profile["step"]["mean_ms"], rel=0.05)


@pytest.mark.services
@pytest.mark.timeout(300)
def test_the_operations_of_the_reference_trainer_are_seen(tmp_path: Path, profiled: Profiled) -> None:
    """Of a trainer that reports its own steps."""
    profile = profiled("step", shipped(tmp_path))
    assert (profile["framework"], profile["batch_size"]) == ("TensorFlow", 2)
    assert profile["phases"]["data"]["median_ms"] is not None
    # with oneDNN a kernel's name has its own prefix
    times = [one["times"] for one in profile["operations"] if one["name"].endswith("Conv2D")]
    assert sum(times) == pytest.approx(4, rel=0.5)


@pytest.mark.services
def test_a_step_of_another_framework_has_its_length(profiled: Profiled) -> None:
    """And the reason that there are no operations."""
    config = "data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}"
    profile = profiled("step", started(TOY, config))
    assert profile["step"]["median_ms"] > 0
    assert profile["operations"] == []
    assert "neither PyTorch nor TensorFlow" in profile["why_not"]


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
@pytest.mark.parametrize("style", ["plain", "accumulated", "adversarial", "closure", "checkpointed", "validated"])
def test_the_phases_of_a_loop_of_pytorch_are_timed(style: str, profiled: Profiled) -> None:
    """Of an unchanged loop, and its operations are seen by PyTorch's profiler."""
    profile = of_torch(profiled, style)
    phases = profile["phases"]
    assert list(phases) == ["data", "forward", "backward", "optimizer", "the rest"]
    batches = 4 if style == "accumulated" else 1
    assert phases["data"]["median_ms"] >= batches * BATCH * LOAD_S * 1000
    assert all(phases[name]["median_ms"] > 0 for name in ("forward", "backward", "optimizer"))
    assert profile["steps"] > 20
    assert profile["why_not"] is None
    times = {one["name"]: one["times"] for one in profile["operations"]}
    assert times["aten::addmm"] >= 5 * batches  # of six layers


@pytest.mark.services
@pytest.mark.timeout(200)
def test_batches_from_no_loader_are_part_of_the_forward_pass(profiled: Profiled) -> None:
    """Where no fetch is seen, the steps go from update to update."""
    profile = of_torch(profiled, "own_batches")
    assert list(profile["phases"]) == ["data and forward", "backward", "optimizer"]
    assert profile["batch_size"] is None


@pytest.mark.services
@pytest.mark.timeout(200)
def test_a_trainer_with_a_profiler_of_its_own_keeps_it(profiled: Profiled) -> None:
    """Then there are phases, and the reason that there are no operations."""
    profile = of_torch(profiled, "profiled")
    assert profile["phases"]["backward"]["median_ms"] > 0
    assert profile["operations"] == []
    assert "the trainer has started PyTorch's profiler itself" in profile["why_not"]
