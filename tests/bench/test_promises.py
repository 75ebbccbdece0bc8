"""``python -m scripts.bench promises``: what is recorded of a search, and the tables that are made of it."""

import gzip
import json
import sys
from itertools import product
from pathlib import Path

import pytest

from autotune.search.model import REALIZED
from scripts.bench.__main__ import main
from scripts.bench.promises import (
    APART,
    Moment,
    WatchedSearch,
    thresholds_table,
)


def moments(*promises: float, gain: float = 0.01, apart_s: float = 60.0) -> list[Moment]:
    """Moments of which each promises this, and gains this much; users are promised twice of it at the tenth trials."""
    before = [
        Moment(
            trials=trials,
            elapsed_s=apart_s * trials,
            ln_speed=gain * trials,
            tried_share=trials / len(promises),
            rest=rest,
            ahead=2 * gain * 10 / REALIZED if trials % APART == 0 and trials else None,
        )
        for trials, rest in enumerate(promises)
    ]
    end = len(before)
    return [
        *before,
        Moment(trials=end, elapsed_s=apart_s * end, ln_speed=gain * end, tried_share=1.0, rest=None, ahead=None),
    ]


# The report


def test_the_rest_is_compared_with_the_end() -> None:
    """At each tenth trial what exploring on promised, and the difference to the answer in the end."""
    one = WatchedSearch(moments=moments(*(0.5,) * 20, gain=0.01), trials_ahead=10)
    assert one.pairs_of_the_rest() == [(0.5, pytest.approx(0.2)), (0.5, pytest.approx(0.1))]


def test_a_threshold_ends_a_search_at_the_first_promise_below() -> None:
    """The table says the cost, and whether it may be; a search that always promises more is not ended."""
    ended = WatchedSearch(moments=moments(0.03, 0.0015, 0.03, 0.0001, gain=0.001))
    endless = WatchedSearch(moments=moments(*(0.03,) * 4, gain=0.001))
    lines = thresholds_table([ended, endless], tried_share=0.0).splitlines()
    assert "| 0.0005 | 1 (50%) | 3 | 25% | 0.10% | 0.10% | 0.10% | so far |" in lines
    assert "| 0.002 | 1 (50%) | 1 | 75% | 0.30% | 0.30% | 0.30% | no |" in lines
    assert "| 0.0005 | 10 (100%) | 3 | 25% | 0.10% | 0.10% | 0.10% | yes |" in thresholds_table(
        [ended] * 10, tried_share=0.0
    )
    assert thresholds_table([endless], tried_share=0.0).splitlines()[-1] == "| 0.02 | 0 (0%) |  |  |  |  |  |  |"


# The parts of a table


# The command


def test_both_kinds_of_searches_are_watched_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every trial has a moment though none promises much, and a second call makes no search again."""
    rows = [f"{a},{b},{1 + a + b}" for a, b in product(range(4), range(5))]
    (tmp_path / "small.csv.gz").write_bytes(gzip.compress("\n".join(["a,b,throughput", *rows]).encode()))
    monkeypatch.chdir(tmp_path)
    arguments = ["promises", ".", "--seeds", "0", "--scenarios", "1002", "--out", "out"]
    monkeypatch.setattr("scripts.bench.promises._TRIALS", 30)
    monkeypatch.setattr("scripts.bench.promises._BUDGET_S", 60.0)
    monkeypatch.setattr(sys, "argv", ["scripts.bench", *arguments])
    assert main() == 0
    report, said = capsys.readouterr()
    assert said.count("\n") == 3
    assert (tmp_path / "out/promises.md").read_text() == report
    assert "## All together (3 searches)" in report
    for line in (tmp_path / "out/promises.jsonl").read_text().splitlines():
        search = json.loads(line)["search"]
        found = search["moments"]
        assert [moment["rest"] is None for moment in found] == [False] * (len(found) - 1) + [True]
        if search["table_piece"]:
            assert found[-1]["trials"] == 30
            assert [moment["trials"] for moment in found if moment["ahead"] is not None][-1:] == [20]
    assert main() == 0
    assert capsys.readouterr() == (report, "")
