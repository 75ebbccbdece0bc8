"""``python -m scripts.bench landscapes``."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.bench.__main__ import main
from scripts.bench.landscape_statistics import ruggedness
from scripts.bench.landscapes import landscape_of_grid, landscape_of_table
from scripts.bench.simulation.changed_scenarios import Change, ChangedScenario
from scripts.bench.simulation.scenarios import scenario
from scripts.bench.tables.table import read_table

ROWS = ["a,b:categorical,throughput", "1,x,5", "1,y,10", "2,x,9", "2,y,0", "3,y,4"]


def written(folder: Path) -> Path:
    """Write a table; of its six points four run."""
    path = folder / "tiny.csv.gz"
    path.write_bytes(gzip.compress("\n".join(ROWS).encode()))
    return path


def test_the_landscape_of_a_table_has_the_points_that_run(tmp_path: Path) -> None:
    """(1, y) is best, and 10 % above (2, x), which leads to it by way of no point that is faster."""
    landscape = landscape_of_table(read_table(written(tmp_path)))
    assert sorted(map(tuple, landscape.positions)) == [(0, 0), (0, 1), (1, 0), (2, 1)]
    found = ruggedness(landscape)
    assert (found.near_best, found.stuck) == (0.25, 0.25)


def test_the_landscape_of_a_scenario_has_the_points_that_run() -> None:
    """As many as have a speed."""
    grid = scenario(3).grid
    assert len(landscape_of_grid(grid).logs) == np.count_nonzero(grid.speeds)


def test_the_report_has_a_row_for_each_table_and_each_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the tables only where there are some."""
    written(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "landscapes", str(tmp_path), "--seeds", "2-3"])
    assert main() == 0
    out = capsys.readouterr().out
    assert "| tiny | 4 | 25.0% | " in out
    assert "| *1 measured tables* |" in out
    assert all(f"| *simulator: {change.value}* |" in out for change in Change)
    monkeypatch.setattr(sys, "argv", ["bench", "landscapes", "--seeds", "2-3"])
    assert main() == 0
    without = capsys.readouterr().out
    assert "tables" not in without
    assert set(without.splitlines()) <= set(out.splitlines())


def test_rugged_scenarios_are_as_rugged_as_measured_systems() -> None:
    """Medians of 16 scenarios near those of 24 measured tables (0.4 %, 8 %, 25 %); the usual ones are far kinder."""
    usual, rugged = [], []
    for seed in range(16):
        one = scenario(seed)
        usual.append(ruggedness(landscape_of_grid(one.grid)))
        rugged.append(ruggedness(landscape_of_grid(ChangedScenario(scenario=one, change=Change.RUGGED).grid)))
    assert np.median([found.near_best for found in usual]) > 0.03
    assert 0.002 < np.median([found.near_best for found in rugged]) < 0.008
    assert np.median([found.main_effects_regret for found in usual]) < 0.02
    assert 0.05 < np.median([found.main_effects_regret for found in rugged]) < 0.14
    assert np.median([found.stuck for found in usual]) < 0.05
    assert 0.12 < np.median([found.stuck for found in rugged]) < 0.4
