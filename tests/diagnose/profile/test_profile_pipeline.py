"""Tests of ``autotune profile pipeline`` with real trainers."""

import json
import sys
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.workloads.tts.corpus import write_corpus

pytestmark = pytest.mark.services

KERAS = Path(__file__).with_name("keras_trainer.py")
TOY = Path(__file__).parents[2] / "toys" / "toy_trainer.py"


@pytest.mark.timeout(300)
def test_a_slow_loader_and_its_cycle_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loader that sleeps is timed alone, and so are the waits for it; every eighth batch is known to be slow."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        "batch_size: 8\nload_s: 0.04\nslow_every: 8\nxla: false\neager: false\nepochs: 10000\n"
        f"autotune:\n  command: \"{sys.executable} '{KERAS}' {{config}}\"\n"
    )
    assert run(["profile", "pipeline", "--config", str(config), "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert profile["batch_samples"] == 8
    assert profile["loading"]["median_ms"] > 30
    assert profile["loading"]["mean_ms"] > 55
    assert profile["loading"]["cycle"]["batches"] == pytest.approx(8, rel=0.1)
    assert profile["loading"]["cycle"]["slow_ms"] > 150
    assert profile["replayed"]["mean_ms"] < profile["steps"]["mean_ms"]
    assert 0.1 < profile["idle_fraction"] <= 1.0
    assert profile["gain_if_free"] > 1.0
    assert "the step waits" in profile["sentence"]
    assert list((tmp_path / ".autotune" / "trials").glob("*/*")) == []


@pytest.mark.timeout(300)
def test_the_stages_of_the_reference_trainer_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, reading and spectrograms of the shipped trainer each have their time."""
    monkeypatch.chdir(tmp_path)
    assert write_corpus(tmp_path / "corpus", clips=12)
    shipped = (Path(__file__).parents[3] / "configs" / "config.yaml").read_text()
    shipped = shipped.replace("batch_size: 8", "batch_size: 2").replace("native_loading: false", "native_loading: true")
    config = tmp_path / "config.yaml"
    config.write_text(shipped.replace("data/quickstart", str(tmp_path / "corpus")))
    assert run(["profile", "pipeline", "--config", str(config), "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in profile["loading_stages"]] == ["text", "read", "decode", "spectrogram"]
    assert all(stage["mean_ms"] > 0 for stage in profile["loading_stages"])
    assert profile["loading"]["mean_ms"] > 0
    assert profile["waits"]["batches"] == profile["steps"]["batches"]


def test_a_loader_that_cannot_be_seen_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a trainer that reports its own steps, these are profiled, and so is each number of workers."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        "data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}\n"
        f"autotune:\n  command: \"{sys.executable} '{TOY}' {{config}}\"\n  knobs: {{data.num_workers: [1, 2]}}\n"
    )
    assert run(["profile", "pipeline", "--config", str(config), "--grid"]) == 0
    shown = capsys.readouterr().out
    assert "The loader alone was not measured" in shown
    assert "data.num_workers" in shown
    assert "samples/s" in shown
    assert list((tmp_path / ".autotune" / "trials").glob("*/*")) == []
