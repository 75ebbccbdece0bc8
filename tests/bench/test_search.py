"""``python -m scripts.bench search``: anytime curves, the tables of them, and the command on a few small scenarios."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.harness import (
    ORACLE,
    OURS,
    AnytimeCurve,
    Confirmation,
    HeadToHead,
    NullTrial,
    Setting,
)
from scripts.bench.peers import PEERS
from scripts.bench.search import confirmations_table, methods_table, speedups


def curve(
    method: str, *regrets: tuple[float, float], setting: Setting | None = None, budget_s: float = 1800.0
) -> AnytimeCurve:
    """Return a curve with these regrets from these times; it starts with 50 % if not said otherwise."""
    known = regrets if regrets and regrets[0][0] == 0 else ((0.0, 0.5), *regrets)
    return AnytimeCurve(
        method=method, setting=setting, budget_s=budget_s, used_s=budget_s / 2, trials=10, regrets=known, answer={}
    )


def head_to_head(
    *, ours: tuple[float, float], theirs: float | None, family: str = "mixed", slow_peer: float = 1500.0
) -> HeadToHead:
    """Ours is close to the best after so many seconds of a short and a long search, a peer after so many, or never."""
    same = Setting.SAME_RUNNER
    curves = [
        curve(OURS, (ours[0], 0.04), budget_s=300.0),
        curve(OURS, (ours[1], 0.01)),
        curve("peer", *([(theirs, 0.03)] if theirs is not None else []), setting=same),
        curve("slow peer", (slow_peer, 0.02), setting=same),
        curve(ORACLE, (10.0, 0.0)),
    ]
    return HeadToHead(seed=0, family=family, machine="small", best={}, curves=curves, confirmations=[])


def cells(table: str, row: str) -> list[str]:
    """The cells of the line that begins with that."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return next(line for line in lines if line[0] == row)


def test_the_table_of_methods_shows_each_budget() -> None:
    """Ours is judged by the search that had that budget; a peer by where it was then."""
    table = methods_table([head_to_head(ours=(200.0, 100.0), theirs=400.0)], Setting.SAME_RUNNER)
    assert cells(table, OURS) == [OURS, "4.0%, 4.0%, 4.0%", "1.0%, 1.0%, 1.0%", "100%", "1m40s", "10", "15m"]
    assert cells(table, "peer")[1:5] == ["50.0%, 50.0%, 50.0%", "3.0%, 3.0%, 3.0%", "100%", "6m40s"]


def test_the_speed_up_is_the_median_ratio_to_the_best_peer() -> None:
    """The best peer is the one with the shortest median time; its times over ours, scenario by scenario."""
    some = [
        head_to_head(ours=(1.0, 100.0), theirs=400.0),
        head_to_head(ours=(1.0, 100.0), theirs=200.0),
        head_to_head(ours=(1.0, 200.0), theirs=100.0),
    ]
    assert cells(speedups(some, Setting.SAME_RUNNER), "all")[1:6] == ["3", "peer", "3m20s", "1m40s", "2.0 (1.2 to 3.0)"]


def test_wrong_verdicts_and_intervals_are_counted() -> None:
    """An interval holds the truth from end to end; better is wrong where nothing is faster in truth."""
    said = [
        Confirmation(better=True, low=1.1, high=1.3, true_ratio=1.2),
        Confirmation(better=True, low=1.1, high=1.3, true_ratio=1.3),
        Confirmation(better=True, low=1.1, high=1.3, true_ratio=1.4),
        Confirmation(better=False, low=0.9, high=1.1, true_ratio=1.0),
    ]
    made = head_to_head(ours=(1.0, 100.0), theirs=400.0)
    with_them = replace(made, confirmations=said)
    nulls = [
        NullTrial(seed=0, confirmation=None),
        NullTrial(seed=1, confirmation=Confirmation(better=True, low=1.03, high=1.2, true_ratio=1.0)),
        NullTrial(seed=2, confirmation=Confirmation(better=False, low=0.9, high=1.2, true_ratio=1.0)),
    ]
    table = confirmations_table([with_them], nulls)
    assert cells(table, "searches of the contests")[1:] == ["2", "4", "3", "0", "75.0%"]
    assert cells(table, "... said to be better")[2:] == ["3", "3", "0", "66.7%"]
    assert cells(table, "nothing to find (A/A)")[1:] == ["3", "2", "1", "1", "50.0%"]


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
