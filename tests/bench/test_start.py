"""The benchmark of starting and stopping runs, on a toy trainer."""

from pathlib import Path

import pytest

from autotune.errors import CommandError, TrialError
from scripts.bench.overhead.start import measure_start
from tests.commands.conftest import CONFIG, TRAINER


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config of the toy trainer, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG % TRAINER)
    return path


def test_prints_the_times_of_both_kinds_and_leaves_no_runs(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fresh processes and forks are measured in turn, and their folders are deleted."""
    measure_start(config, trials=2, state_dir=tmp_path / "state")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:4]] == ["fresh", "warm"]
    assert printed[-1] == "0 forks were given up"
    assert list((tmp_path / "state" / "runs").glob("*/*")) == []


def test_says_what_it_needs(config: Path, tmp_path: Path) -> None:
    """A trainer that ends too soon, or is no Python program, cannot be measured."""
    config.write_text(config.read_text().replace("out:", "mood: ends at once\nout:"))
    with pytest.raises(TrialError, match="ended after 0 steps"):
        measure_start(config, trials=1, state_dir=tmp_path / "state")
    config.write_text(config.read_text().replace("{python}", "/bin/sh"))
    with pytest.raises(CommandError, match="warm interpreter"):
        measure_start(config, trials=1, state_dir=tmp_path / "state")
