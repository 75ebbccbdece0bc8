"""``python -m scripts.bench tables``, on a tiny made-up table."""

import gzip
import json
import sys
from itertools import product
from pathlib import Path

import pytest

from scripts.bench.__main__ import main
from scripts.bench.harness import Harness
from scripts.bench.tables.benchmark import Search, report
from scripts.bench.tables.searches import METHODS, Answers, Piece, make_search, missing_packages
from scripts.bench.tables.table import USUAL, Table, TableTrainer, read_table

HEADER = "threads,ratio,codec:categorical,throughput"


def rows() -> list[str]:
    """Combinations of 4 x 3 x 3 values; what has 4 threads and no codec does not run, the best one is 4, 0.5, b."""
    return [
        f"{threads},{ratio},{codec},{threads * (1 + (codec == 'b')) * (2 - abs(ratio - 0.5)) / 100}"
        for threads, ratio, codec in product((1, 2, 3, 4), (0.00001, 0.5, 1), ("none", "a", "b"))
        if (threads, codec) != (4, "none")
    ]


def written(path: Path, lines: list[str]) -> Path:
    """Write a table of these lines."""
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """The tiny table."""
    return read_table(written(tmp_path / "tiny.csv.gz", [HEADER, *rows()]))


def trainer(table: Table, noise: str = USUAL) -> TableTrainer:
    """Its trainer, from the lowest values."""
    return TableTrainer(table=table, start=table.lowest, noise=noise, seed=0)


# The table


def test_a_table_is_read(table: Table) -> None:
    """Options with their values, the best combination, both starts, and what is missing."""
    assert [(option.name, option.choices, option.ordered) for option in table.options] == [
        ("threads", (1, 2, 3, 4), True),
        ("ratio", (0.00001, 0.5, 1), True),
        ("codec", ("a", "b", "none"), False),
    ]
    assert (table.name, table.combinations, len(table.throughputs)) == ("tiny", 36, 33)
    assert (table.best, table.lowest) == ((4, 0.5, "b"), (1, 0.00001, "a"))
    assert sum(table.throughputs[row] < table.throughputs[table.median] for row in table.throughputs) <= 16
    assert table.regret(table.best) == 0.0
    assert table.regret((4, 0.5, "none")) == 1.0


# Its trainer


def test_trials_are_as_the_table_says(table: Table, tmp_path: Path) -> None:
    """A measured ratio of two points is that of their rows, a missing combination gives no number, all are as long."""
    harness = Harness(trainer(table), 1e7, tmp_path / "work", method="test")
    assert harness.problem.space.size == table.combinations
    values = [harness.problem.space.at(indices) for indices in ((0, 0, 0), (3, 1, 1), (3, 1, 2))]
    took_s, speeds = [], []
    for point in values:
        before_s = harness.clock.now_s()
        speeds.append(harness.measure_as_ours(point))
        took_s.append(harness.clock.now_s() - before_s)
    assert speeds[2] is None
    assert speeds[0] is not None
    assert speeds[1] is not None
    one = trainer(table)
    assert speeds[1] / speeds[0] == pytest.approx(one.speed(values[1]) / one.speed(values[0]), rel=0.5)
    assert took_s[0] == pytest.approx(took_s[1], abs=1.0)
    assert [one.fails(plan.config_text) for plan in harness.runner.plans] == [False, False, True]


# Searches


@pytest.mark.parametrize("method", METHODS)
def test_a_search_on_a_table(table: Table, tmp_path: Path, method: str) -> None:
    """Every method answers at both numbers of trials, makes no more, and finds something better than its start."""
    if missing := missing_packages(method):
        pytest.skip(f"{' and '.join(missing)} not installed")
    one = trainer(table)
    answers = make_search(method, one, (5, 10), tmp_path / "work")
    assert list(answers.regrets) == [5, 10]
    is_tuner = method.startswith("autotune") or method.endswith("in our tuner")  # a search for each number
    assert answers.trials <= (15 if is_tuner else 10)
    assert answers.regrets[10] < table.regret(table.lowest)


# The benchmark


def test_the_report_says_who_is_first() -> None:
    """The one with the lower regret everywhere is, for sure; wins, losses and ties are counted."""

    def search(method: str, seed: int, regret: float) -> Search:
        piece = Piece(method=method, table="t", digest="", noise=USUAL, start="lowest", seed=seed, trials=(30,))
        return Search(piece=piece, answers=Answers(regrets={30: regret}, trials=30, failed=0, cpu_s=1.0))

    text = report(
        [
            *(search("autotune", seed, 0.01) for seed in range(3)),
            *(search("TPE", seed, 0.01 + 0.1 * (seed > 0)) for seed in range(3)),
        ]
    )
    assert "| autotune | 3 | 1.0% | 1.0% | 1.0% | 100% |" in text
    assert "| autotune | TPE | 1.0%, 1.0%, 1.0% | 11.0%, 7.7%, 11.0% | 2 | 0 | 1 | -6.7% (-10.0% to" in text
    assert "Table by table" not in text  # as nobody explored


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: Table):
    """Runs the command in a folder with the table; answers with its exit code, what it printed, and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scripts.bench", "tables", ".", "--noise", USUAL, "--out", "out", *arguments])
        code = main()
        out, err = capsys.readouterr()
        return code, out, err

    return run


QUICK = ("--seeds", "0", "--trials", "5,8", "--method", "random", "--method", "coordinate descent")


def test_an_interrupted_benchmark_goes_on(command, tmp_path: Path) -> None:
    """Searches that are done stay, a torn last line is made again with the same result, further seeds are added."""
    code, out, _ = command(*QUICK)
    assert code == 0
    assert "### After 8 trials" in out
    results = tmp_path / "out/results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    results.write_text("".join(lines[:3]) + lines[3][:50])
    code, _, err = command(*QUICK)
    assert (code, "1 of 1" in err) == (0, True)
    again = results.read_text().splitlines(keepends=True)
    assert again[:3] == lines[:3]
    regrets = [json.loads(some[3])["search"]["answers"]["regrets"] for some in (lines, again)]
    assert regrets[0] == regrets[1]
    assert "4 of 4" in command(*QUICK[:1], "0-1", *QUICK[2:])[2]
