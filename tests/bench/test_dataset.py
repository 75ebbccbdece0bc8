"""Benchmarks of the dataset functions."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from scripts.bench.dataset.text_preparation import TextBenchmark, benchmark_texts


def test_texts_are_the_same_in_every_way() -> None:
    """The table has a row for each normalizer, with its seconds, and says that the tokens are the same."""
    table = benchmark_texts(TextBenchmark(listing=None, lines=200, workers=2, turns=1))
    assert table.startswith("200 lines, median [least, most] of 1 turns\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert rows[0] == ["", "here", "2 processes", "cache, first", "cache, then", "same tokens"]
    assert [row[-1] for row in rows[2:]] == ["yes", "yes", "yes"]
    assert all(cell.endswith(" s") for row in rows[2:] for cell in row[1:5])


@pytest.mark.parametrize("content", [None, "one column\n", b"\xff\xfe|\xff\n"])
def test_a_listing_that_cannot_be_read_is_named(content: str | bytes | None, tmp_path: Path) -> None:
    """The file and what to give instead."""
    listing = tmp_path / "metadata.csv"
    if content is not None:
        listing.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"metadata\.csv"):
        benchmark_texts(TextBenchmark(listing=listing, lines=2, workers=2, turns=1))


@pytest.mark.services
def test_each_function_of_the_pipeline_is_measured() -> None:
    """The command prints a row for each situation, with both rates and their ratio."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench", "dataset", "--turns", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=170,
    )
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert {row[0].split(",")[0].strip() for row in rows} == {
        "throughput options",
        "staged prefetch",
        "interleaved",
        "fixed shapes",
    }
    assert all(row[4].strip().endswith(" x") for row in rows)
