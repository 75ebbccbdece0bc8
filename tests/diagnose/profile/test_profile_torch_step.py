"""Tests of ``autotune profile step`` with real trainers on PyTorch."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from tests.trainee.conftest import interpreter_with

TRAINER = Path(__file__).with_name("torch_trainer.py")
PHASES = ["data", "copy to device", "forward", "loss", "backward", "optimizer", "the rest"]
LOAD_S = 0.0005
BATCH = 16


def profiled(style: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the profile of a trainer in that style, its phases by name."""
    config = folder / "config.json"
    config.write_text(json.dumps({"style": style, "batch_size": BATCH, "load_s": LOAD_S, "out_dir": "out"}))
    python = interpreter_with("torch")
    argv = ["profile", "step", "--config", str(config), "--json", "--", python, str(TRAINER), "{config}"]
    assert run(argv) == 0
    document = json.loads(capsys.readouterr().out)
    document["phases"] = {phase["name"]: phase for phase in document["phases"]}
    return dict(document)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("style", "of", "way"),
    [
        ("plain", "PyTorch's Net", "eager, float32"),
        ("compiled", "PyTorch's Net", "torch.compile, float32"),
        ("mixed", "PyTorch's Net", "eager, float32, autocast to bfloat16"),
        ("accumulated", "PyTorch's Net", "eager, float32, 4 batches a step"),
        ("adversarial", "PyTorch's Net", "eager, float32"),
        ("closure", "PyTorch's Net", "eager, float32"),
        ("checkpointed", "PyTorch's Linear", "eager, float32"),
        ("validated", "PyTorch's Net", "eager, float32"),
    ],
)
def test_the_step_of_a_loop_is_taken_apart(
    style: str, of: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each phase of an unchanged loop has its time; together they are about the step."""
    monkeypatch.chdir(tmp_path)
    profile = profiled(style, tmp_path, capsys)
    phases = profile["phases"]
    assert list(phases) == PHASES
    assert (profile["of"], profile["compiled"], profile["batch_size"]) == (of, way, BATCH)
    assert phases["copy to device"]["why_not"] == "there is no GPU"
    batches = 4 if style == "accumulated" else 1
    assert phases["data"]["median_ms"] >= batches * BATCH * LOAD_S * 1000
    assert all(phases[name]["median_ms"] > 0 for name in ("forward", "loss", "backward", "optimizer"))
    assert phases["backward"]["median_ms"] > phases["loss"]["median_ms"]
    assert profile["steps"] > 20
    assert 0.7 < profile["adds_up"] < 1.3
    assert abs(profile["marks_cost"]) < 0.5


@pytest.mark.timeout(200)
def test_batches_from_no_loader_are_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no fetch is seen, the steps go from update to update, and it is said that data was not measured."""
    monkeypatch.chdir(tmp_path)
    profile = profiled("own_batches", tmp_path, capsys)
    assert "no fetch from a DataLoader" in profile["phases"]["data"]["why_not"]
    assert profile["phases"]["backward"]["median_ms"] > 0
    assert profile["batch_size"] is None
