"""``python -m scripts.bench siblings``: the workloads, and the table that is made of their searches."""

import sys
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.siblings import SecondSearch, SiblingSearches, report
from scripts.bench.simulation.scenarios import scenario
from scripts.bench.simulation.sibling_scenarios import another_training, on_another_machine


def _second(close_s: float | None, imported_regret: float | None = 0.0) -> SecondSearch:
    return SecondSearch(
        close_s=close_s, early_regret=0.1, last_regret=0.0, imported_regret=imported_regret, answer_is_imported=True
    )


def _searches(cold_s: float | None, warm: SecondSearch, misled: SecondSearch) -> SiblingSearches:
    return SiblingSearches(
        seed=0,
        family="mixed",
        machines=("A", "B"),
        budget_s=600.0,
        baseline_regret=0.5,
        cold=_second(cold_s, None),
        warm=warm,
        misled=misled,
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_sibling_is_the_same_training_on_other_hardware(seed: int) -> None:
    """It runs there, with the same values today, and is the same in each benchmark."""
    one = scenario(seed)
    other = on_another_machine(one)
    assert other.machine != one.machine
    assert other.training.baseline == one.training.baseline
    assert other.speed({}) > 0.0
    assert on_another_machine(one).config_text == other.config_text
    assert bool(other.machine.gpus) == bool(one.machine.gpus)


def test_another_training_has_the_same_config() -> None:
    """Only its model and data are of another kind: nothing that a search can see before its trials."""
    one = scenario(5)
    other = another_training(one)
    assert other.config_text == one.config_text
    assert other.machine == one.machine
    assert other.training.workload != one.training.workload
    assert other.speed({}) > 0.0


def test_what_was_not_found_counts_with_the_whole_budget() -> None:
    """Times and their ratios, by where the optimum lies; a profile without points belongs to neither row."""
    done = [
        _searches(100.0, _second(20.0), _second(100.0, 0.5)),
        _searches(None, _second(150.0, 0.2), _second(None, 0.5)),
        _searches(60.0, _second(60.0, None), _second(60.0)),
    ]
    everything, near, elsewhere, misled = report(done).splitlines()[2:6]
    assert "| 3 | 1m40s | 1m | 4.00x, 2.71x | 10.0%, 10.0% | 2, 3 |" in everything
    assert "| 1 | 1m40s | 20s | 5.00x, 5.00x |" in near
    assert "| 1 | 10m | 2m30s | 4.00x, 4.00x |" in elsewhere
    assert "| 2 | 5m50s | 5m50s | 1.00x, 1.00x |" in misled


def test_runs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload is searched once, whoever asks again."""
    monkeypatch.setattr(
        sys, "argv", ["bench", "siblings", "--seeds", "13", "--budget", "60s", "--out", str(tmp_path / "out")]
    )
    assert main() == 0
    first = capsys.readouterr()
    assert "| all where today's config is not within 5 % of the best | 1 |" in first.out
    assert "1 of 1: 13:" in first.err
    assert main() == 0
    assert capsys.readouterr() == (first.out, "")
