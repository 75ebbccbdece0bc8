"""The benchmarks of what autotune costs: starting trials, watching trainers, and the record of a study."""

import sys
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.overhead import storage as storage_cost
from scripts.bench.overhead.observer import benchmark_observer
from scripts.bench.overhead.start import measure_start
from tests.commands.conftest import CONFIG, TRAINER
from tests.trainee.conftest import interpreter_with


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config of the toy trainer, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG % TRAINER)
    return path


@pytest.mark.services
def test_prints_the_times_of_both_kinds_and_leaves_no_runs(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fresh processes and forks are measured in turn, and their folders are deleted."""
    measure_start(config, trials=2, state_dir=tmp_path / "state")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:4]] == ["fresh", "warm"]
    assert printed[-1] == "0 forks were given up"
    assert list((tmp_path / "state" / "runs").glob("*/*")) == []


@pytest.mark.services
def test_prints_what_is_seen_and_what_that_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each style; one that cannot train says why, and the others are measured."""
    benchmark_observer(python=interpreter_with("torch"), styles=["torch", "jax"], pairs=1, steps=20)
    torch = capsys.readouterr().out.splitlines()[2].split(" | ")
    style, steps, samples, _wait, is_right, step_us, own_us, cost_us = torch
    assert (style, steps, samples, is_right) == ("| torch", "40 of 40", "312 of 312", "yes")
    assert 0.0 < float(own_us.split()[0]) < float(step_us)
    assert "[" in cost_us


@pytest.mark.services
def test_prints_a_row_for_an_empty_study_and_one_for_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each storage that is named; what it wrote there is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage_cost, "_OPENINGS", 1)
    monkeypatch.setattr(sys, "argv", ["scripts.bench", "storage", "--trials", "5", "--storage", "journal:j"])
    assert main() == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [row[:2] for row in rows] == [["journal", "0"], ["journal", "5"]]
    assert all(float(row[4].removesuffix(" kB")) > 1.0 for row in rows)
    assert list((tmp_path / "j").iterdir()) == []
