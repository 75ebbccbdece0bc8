"""Tests of ``autotune profile pipeline`` with real trainers."""

from pathlib import Path

import pytest

from autotune.cli import run
from tests.diagnose.profile.conftest import KERAS, TOY, Profiled, shipped, started

pytestmark = pytest.mark.services


@pytest.mark.timeout(300)
def test_a_slow_loader_and_its_cycle_are_seen(profiled: Profiled) -> None:
    """A loader that sleeps is timed alone, and so are the waits for it; every eighth batch is known to be slow."""
    config = "batch_size: 8\nload_s: 0.04\nslow_every: 8\nxla: false\neager: false\nepochs: 10000"
    profile = profiled("pipeline", started(KERAS, config))
    assert profile["batch_samples"] == 8
    assert profile["loading"]["median_ms"] > 30
    assert profile["loading"]["mean_ms"] > 55
    assert profile["loading"]["cycle"]["batches"] == pytest.approx(8, rel=0.1)
    assert profile["loading"]["cycle"]["slow_ms"] > 150
    assert profile["replayed"]["mean_ms"] < profile["steps"]["mean_ms"]
    assert 0.1 < profile["idle_fraction"] <= 1.0
    assert profile["gain_if_free"] > 1.0
    assert "the step waits" in profile["sentence"]


@pytest.mark.timeout(300)
def test_the_stages_of_the_reference_trainer_are_seen(tmp_path: Path, profiled: Profiled) -> None:
    """Text, reading and spectrograms of the shipped trainer each have their time."""
    config = shipped(tmp_path).replace("native_loading: false", "native_loading: true")
    profile = profiled("pipeline", config)
    assert [stage["name"] for stage in profile["loading_stages"]] == ["text", "read", "decode", "spectrogram"]
    assert all(stage["mean_ms"] > 0 for stage in profile["loading_stages"])
    assert profile["loading"]["mean_ms"] > 0
    assert profile["waits"]["batches"] == profile["steps"]["batches"]


def test_a_loader_that_cannot_be_seen_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a trainer that reports its own steps, these are profiled."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(started(TOY, "data: {batch_size: 4, num_workers: 1}\nout: {log_dir: logs}"))
    assert run(["profile", "pipeline", "--config", "config.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "The loader alone was not measured" in shown
    assert list(Path(".autotune", "trials").glob("*/*")) == []
