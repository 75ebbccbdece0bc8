"""``python -m scripts.bench search``, on a few small scenarios."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from autotune.records import Values
from scripts.bench.__main__ import main
from scripts.bench.harness import FIXED_RUN_S, ORACLE, OURS, Harness, Setting
from scripts.bench.peers import PEERS, random_search
from scripts.bench.simulation.scenarios import scenario

Measure = Callable[[Values], float | None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs the command in an empty folder; answers with its exit code, what it printed, and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scripts.bench", "search", *arguments])
        code = main()
        out, err = capsys.readouterr()
        return code, out, err

    return run


SMALL = ("--seeds", "0-1", "--budgets", "90s,2m", "--aa", "1", "--out", "out")


@pytest.mark.services
def test_a_whole_benchmark(command, tmp_path: Path) -> None:
    """Two processes, two scenarios and an A/A: tables on stdout and in a file, a picture, and the raw results."""
    code, out, err = command(*SMALL, "--jobs", "2")
    assert code == 0
    assert out.startswith("2 scenarios")
    assert all(f"| {method} |" in out for method in (OURS, ORACLE, *PEERS))
    assert (tmp_path / "out/tables.md").read_text() in out
    assert (tmp_path / "out/regret.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3" in err
    lines = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert {line["format"] for line in lines} == {4}
    head_to_head = next(contest for line in lines if (contest := line["search"]["contest"]) and contest["seed"] == 0)
    found = [(curve["method"], curve["setting"], curve["budget_s"]) for curve in head_to_head["curves"]]
    ours = [(OURS, None, 90.0), (OURS, None, 120.0)]
    assert sorted(found, key=str) == sorted(
        [
            *ours,
            (ORACLE, None, 120.0),
            *((peer, setting.value, 120.0) for peer in PEERS for setting in (Setting.SHIPPED, Setting.SAME_RUNNER)),
            *((name, Setting.SAME_SEARCH.value, budget_s) for name in ("TPE", "random") for budget_s in (90.0, 120.0)),
        ],
        key=str,
    )
    assert all(t_s <= curve["budget_s"] for curve in head_to_head["curves"] for t_s, _ in curve["regrets"])


@pytest.mark.services
def test_an_interrupted_benchmark_goes_on(command, tmp_path: Path) -> None:
    """Finished scenarios are not repeated, a torn last line is, and the results equal those of one go."""
    arguments = ("--seeds", "0-1", "--budgets", "1m", "--out", "out")
    assert command(*arguments)[0] == 0
    results = tmp_path / "out/results.jsonl"
    first, second = results.read_text().splitlines(keepends=True)
    results.write_text(first + second[:100])
    code, _, err = command(*arguments)
    assert code == 0
    assert "1 of 1: contest 1" in err
    kept, again = results.read_text().splitlines(keepends=True)
    assert kept == first
    assert json.loads(again) == json.loads(second)


def test_results_of_another_benchmark_are_not_mixed_in(command) -> None:
    """Other budgets in the same folder: an error with a remedy, before anything runs."""
    assert command("--seeds", "0", "--budgets", "1m", "--out", "out")[0] == 0
    code, out, err = command("--seeds", "0", "--budgets", "2m", "--out", "out")
    assert (code, out) == (1, "")
    assert "another benchmark" in err
    assert "--out" in err


@pytest.mark.parametrize("arguments", [("--seeds", "3-1"), ("--seeds", "x"), ("--budgets", "soon")])
def test_wrong_usage_is_refused(command, arguments: tuple[str, str]) -> None:
    """Unreadable arguments are an error of usage."""
    with pytest.raises(SystemExit) as error:
        command(*arguments)
    assert error.value.code == 2


def timed(harness: Harness, measure: Measure, took_s: list[float]) -> Measure:
    """The same, noting how long each trial takes."""

    def measured(values: Values) -> float | None:
        started_s = harness.clock.now_s()
        speed = measure(values)
        took_s.append(harness.clock.now_s() - started_s)
        return speed

    return measured


def test_as_shipped_every_run_takes_a_minute(tmp_path: Path) -> None:
    """Start included; only what fails, and the last one at the wall, is shorter."""
    harness = Harness(scenario(0), 600.0, tmp_path / "harness", method="random", fresh_processes=True)
    took_s: list[float] = []
    harness.follow(random_search(harness.problem.space, 0), timed(harness, harness.measure_for_a_minute, took_s))
    assert max(took_s) == pytest.approx(FIXED_RUN_S, abs=0.3)
    assert sum(took_s) == pytest.approx(600.0, abs=0.3)


def test_on_the_same_runner_runs_are_as_short_as_ours(tmp_path: Path) -> None:
    """A trial measures for no longer than the config allows; ten minutes are many trials, and are not overrun."""
    harness = Harness(scenario(10), 600.0, tmp_path / "harness", method="random")
    took_s: list[float] = []
    harness.follow(random_search(harness.problem.space, 0), timed(harness, harness.measure_as_ours, took_s))
    assert len(took_s) > 20
    assert median(took_s) < 2 * harness.problem.limits.max_s + 5.0
    assert sum(took_s) <= 600.0 + 0.3
