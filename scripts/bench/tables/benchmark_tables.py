"""Benchmark of our tuner and its peers on measured tables, piece by piece.

Every finished search is a line of ``results.jsonl``, so that the same command resumes after an interruption, and one
with more seeds, methods or noises adds to what is there.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune import __version__
from autotune.errors import ConfigError
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.tables.noise import NOISES
from scripts.bench.tables.pieces import Piece, pieces, trainer_of
from scripts.bench.tables.regret_tables import Search, report
from scripts.bench.tables.searches import METHODS, make_search, missing_packages
from scripts.bench.tables.table import Table, read_tables

FORMAT = 2
"""Version of the lines of ``results.jsonl``."""


@dataclass(frozen=True, kw_only=True)
class TablesBenchmark:
    """Settings of one benchmark.

    Attributes:
        folder: Folder of the tables.
        seeds: Seeds.
        trials: Numbers of trials after which the answer counts.
        methods: Names of the methods; empty for all that can be used here.
        noises: Names of the noises; empty for all.
        jobs: Number of processes.
        out: Folder of the results; an existing one is gone on with.
    """

    folder: Path
    seeds: range
    trials: Sequence[int]
    methods: Sequence[str] = ()
    noises: Sequence[str] = ()
    jobs: int = 1
    out: Path


def benchmark_tables(benchmark: TablesBenchmark) -> None:
    """Make the missing searches, and print the report.

    Raises:
        ConfigError: A table, or an earlier result, cannot be used, or a name is unknown.
    """
    tables = {table.name: table for table in read_tables(benchmark.folder)}
    wanted = list(
        pieces(
            list(tables.values()),
            methods=_methods(benchmark.methods),
            noises=_known(benchmark.noises, tuple(NOISES), "noise"),
            seeds=benchmark.seeds,
            trials=benchmark.trials,
        )
    )
    searches = make_missing(
        partial(_make, tables=tables),
        wanted,
        path=benchmark.out / "results.jsonl",
        head={"format": FORMAT, "autotune": __version__},
        kind=Search,
        jobs=benchmark.jobs,
        describe=lambda search: f"{search.piece}: {search.answers.cpu_s:.1f} s of CPU",
    )
    text = report(searches)
    print(text, end="")
    (benchmark.out / "tables.md").write_text(text, encoding="utf-8")


def _methods(names: Sequence[str]) -> Sequence[str]:
    chosen = _known(names, METHODS, "method")
    for method in chosen:
        if missing := missing_packages(method):
            print(f"{method} is left out: it needs {' and '.join(missing)}", file=sys.stderr)
    return [method for method in chosen if not missing_packages(method)]


def _known(names: Sequence[str], known: Sequence[str], what: str) -> Sequence[str]:
    """Return these names, all known ones if there are none.

    Raises:
        ConfigError: One of them is not known.
    """
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {what} {name!r}", remedy=f"There are: {'; '.join(known)}.")
    return names or known


def _make(piece: Piece, tables: dict[str, Table]) -> Search:
    trainer = trainer_of(piece, tables[piece.table])
    with work_folder() as folder:
        return Search(piece=piece, answers=make_search(piece.method, trainer, piece.trials, folder))
