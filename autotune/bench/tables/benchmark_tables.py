"""Benchmark of our tuner and its peers on measured tables, piece by piece.

Every finished search is a line of ``results.jsonl``, so that the same command resumes after an interruption, and one
with more seeds, methods or noises adds to what is there.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from autotune import __version__
from autotune.bench.resumable import in_processes, kept_entries, work_folder
from autotune.bench.tables.noise import NOISES
from autotune.bench.tables.pieces import Piece, pieces, start_of
from autotune.bench.tables.regret_tables import Search, report
from autotune.bench.tables.searches import METHODS, make_search, missing_packages
from autotune.bench.tables.table import Table, read_tables
from autotune.bench.tables.table_trainer import TableTrainer
from autotune.errors import ConfigError

FORMAT = 1
"""Version of the lines of ``results.jsonl``."""

_search = TypeAdapter(Search)


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
    benchmark.out.mkdir(parents=True, exist_ok=True)
    results = benchmark.out / "results.jsonl"
    head = {"format": FORMAT, "autotune": __version__}
    kept = (_search.validate_python(entry["search"]) for entry in kept_entries(results, head))
    done = {search.piece: search for search in kept}
    missing = [piece for piece in wanted if piece not in done]
    with results.open("a", encoding="utf-8") as file:
        make = partial(_make, tables=tables)
        for number, search in enumerate(in_processes(make, missing, benchmark.jobs), start=1):
            file.write(json.dumps({**head, "search": _search.dump_python(search, mode="json")}) + "\n")
            file.flush()
            done[search.piece] = search
            piece, cpu_s = search.piece, search.answers.cpu_s
            where = f"{piece.table}, {piece.start}, {piece.noise}, seed {piece.seed}"
            print(f"{number} of {len(missing)}: {piece.method} on {where}: {cpu_s:.1f} s of CPU", file=sys.stderr)
    text = report([done[piece] for piece in wanted])
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
    table = tables[piece.table]
    # From all of these: else a random search would try the same points from both starts, under the same noise.
    seed = random.Random(f"{piece.table} {piece.start} {piece.noise} {piece.seed}").getrandbits(31)
    trainer = TableTrainer(table=table, start=start_of(table, piece.start), noise=piece.noise, seed=seed)
    with work_folder() as folder:
        return Search(piece=piece, answers=make_search(piece.method, trainer, piece.trials, folder))
