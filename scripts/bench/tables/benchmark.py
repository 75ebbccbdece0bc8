"""Benchmark of our tuner and its peers on measured tables, piece by piece, with its report as Markdown.

Every finished search is a line of ``results.jsonl``, so that the same command resumes after an interruption, and one
with more seeds, methods or noises adds to what is there.

Regrets of all tables are pooled, each search counting once. Intervals and chances come from a paired bootstrap: tables
are drawn with replacement, and then the seeds within each table and start, the same draws for all methods.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune import __version__
from autotune.errors import ConfigError
from scripts.bench.harness import OURS
from scripts.bench.results import (
    Commands,
    add_pieces,
    make_missing,
    markdown_table,
    parse_numbers,
    parse_seeds,
    regret_cells,
    work_folder,
)
from scripts.bench.tables.searches import (
    EXPLORING,
    METHODS,
    Answers,
    Piece,
    make_search,
    missing_packages,
    pieces,
    trainer_of,
)
from scripts.bench.tables.table import NOISES, Table, read_tables

_DRAWS = 2_000
_SAME = 1e-9  # regrets closer than this are a tie

_Key = tuple[str, str, int]  # table, start, seed
_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search that was made."""

    piece: Piece
    answers: Answers


def report(searches: Sequence[Search]) -> str:
    """Return all tables of these searches."""
    parts = [f"{len(searches)} searches, {sum(search.answers.cpu_s for search in searches) / 60:.0f} minutes of CPU."]
    for noise in dict.fromkeys(search.piece.noise for search in searches):
        some = [search for search in searches if search.piece.noise == noise]
        names = sorted({search.piece.table for search in some})
        parts.append(f"## Noise: {noise} ({len(names)} tables: {', '.join(names)})")
        for trials in sorted({number for search in some for number in search.answers.regrets}):
            parts += [f"### After {trials} trials", regrets_table(some, trials), wins_table(some, trials)]
        if losses := losses_table(some):
            parts += ["### Table by table", losses]
    return "\n\n".join(part for part in parts if part) + "\n"


def regrets_table(searches: Sequence[Search], trials: int) -> str:
    """Return a line for each method: its regrets, and the chance that no method has a lower mean."""
    regrets = _regrets(searches, trials)
    first = _first(regrets)
    cpu_s = {
        method: np.median([one.answers.cpu_s / one.answers.trials for one in searches if one.piece.method == method])
        for method in regrets
    }
    rows = []
    for method, found in regrets.items():
        values = np.array(list(found.values()))
        close = np.mean(values <= 0.05)
        own = f"{cpu_s[method]:.2f} s"
        rows.append([method, str(len(values)), *regret_cells(values), f"{close:.0%}", f"{first[method]:.0%}", own])
    head = ["method", "searches", "median regret", "mean", "p90", "within 5 %", "first in mean (bootstrap)"]
    return markdown_table([*head, "CPU a trial, simulation included"], rows)


def wins_table(searches: Sequence[Search], trials: int) -> str:
    """Return our regrets, wins and losses beside each other method's on searches that both made; empty without such."""
    regrets = _regrets(searches, trials)
    rows = []
    for ours in (OURS, EXPLORING):
        for method in regrets:
            both = [key for key in regrets.get(ours, {}) if key in regrets[method]]
            if method in (OURS, EXPLORING) or not both:
                continue
            gaps = {key: regrets[ours][key] - regrets[method][key] for key in both}
            wins, losses = (sum(sign * gap > _SAME for gap in gaps.values()) for sign in (-1, 1))
            low, high = np.percentile(_draws({"": gaps})[""], (2.5, 97.5))
            mean = float(np.mean(list(gaps.values())))
            rows.append(
                [
                    ours,
                    method,
                    *(", ".join(regret_cells([regrets[one][key] for key in both])) for one in (ours, method)),
                    *(str(count) for count in (wins, losses, len(both) - wins - losses)),
                    f"{mean:+.1%} ({low:+.1%} to {high:+.1%})",
                ]
            )
    if not rows:
        return ""
    return markdown_table(
        [
            "",
            "against",
            "median, mean, p90 of the regret",
            "theirs",
            "wins",
            "losses",
            "ties",
            "mean difference (95 %)",
        ],
        rows,
    )


def losses_table(searches: Sequence[Search]) -> str:
    """Return a line for each table: the medians of our regret and of the best other method's, by number of trials.

    What we lose most on comes first. Of so many methods the best one on a table has been lucky, too, so that a loss may
    be chance where a gain is none; both medians are of the searches that both made. Empty if we made none.
    """
    numbers = sorted({number for search in searches for number in search.answers.regrets})
    rows: list[tuple[float, list[str]]] = []
    for table in sorted({search.piece.table for search in searches}):
        some = [search for search in searches if search.piece.table == table]
        lost, cells = [], []
        for trials in numbers:
            regrets = _regrets(some, trials)
            ours = regrets.get(EXPLORING, {})
            others = {
                method: [(ours[key], regret) for key, regret in found.items() if key in ours]
                for method, found in regrets.items()
                if method not in (OURS, EXPLORING) and ours.keys() & found
            }
            if not others:
                cells.append("")
                continue
            medians = {method: np.median(pairs, axis=0) for method, pairs in others.items()}
            best = min(medians, key=lambda method: medians[method][1])
            our, other = medians[best].tolist()
            lost.append(our - other)
            cells.append(f"{our:.1%}, {other:.1%} {best} ({len(others[best])})")
        if lost:
            rows.append((max(lost), [table, *cells, f"{max(lost):+.1%}"]))
    if not rows:
        return ""
    return markdown_table(
        ["table", *(f"after {trials}: ours, best other (searches)" for trials in numbers), "most lost"],
        [cells for _, cells in sorted(rows, key=lambda row: -row[0])],
    )


def _regrets(searches: Sequence[Search], trials: int) -> dict[str, dict[_Key, float]]:
    """Return the regrets after so many trials by method and search."""
    found: dict[str, dict[_Key, float]] = {}
    for search in searches:
        if trials in search.answers.regrets:
            piece = search.piece
            key = (piece.table, piece.start, piece.seed)
            found.setdefault(piece.method, {})[key] = search.answers.regrets[trials]
    return found


def _first(regrets: Mapping[str, Mapping[_Key, float]]) -> dict[str, float]:
    """Return for each method the share of the draws in which its mean is the lowest; ties are shared."""
    draws = _draws(regrets)
    means = np.array([draws[method] for method in regrets])
    is_first = means <= means.min(axis=0) + _SAME
    shares = (is_first / is_first.sum(axis=0)).mean(axis=1)
    return dict(zip(regrets, shares.tolist(), strict=True))


def _draws(regrets: Mapping[str, Mapping[_Key, float]]) -> dict[str, _Array]:
    """Return bootstrap draws of each method's mean: drawn tables, in these the searches of each start."""
    tables = sorted({key[0] for found in regrets.values() for key in found})
    seeds = sorted({key[2] for found in regrets.values() for key in found})
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(tables), np.full(len(tables), 1 / len(tables)), size=_DRAWS).astype(np.float64)
    # One drawing of seeds for all methods; a method that lacks some has its weight on the others.
    counts = 1e-6 + rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=(_DRAWS, len(tables)))
    draws: dict[str, _Array] = {}
    for method, found in regrets.items():
        cells: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for (table, start, seed), regret in found.items():
            cells[table, start][seed] = regret
        total, weight = np.zeros(_DRAWS), np.zeros(_DRAWS)
        for (table, _), by_seed in cells.items():
            at = tables.index(table)
            drawn = counts[:, at, [seeds.index(seed) for seed in by_seed]]
            means = drawn @ np.array(list(by_seed.values())) / drawn.sum(axis=1)
            total += weights[:, at] * means
            weight += weights[:, at]
        draws[method] = total / np.maximum(weight, 1e-9)
    return draws


FORMAT = 2
"""Version of the lines of ``results.jsonl``."""


def benchmark_tables(
    *,
    folder: Path,
    seeds: range,
    trials: Sequence[int],
    methods: Sequence[str],
    noises: Sequence[str],
    jobs: int,
    out: Path,
) -> None:
    """Make the missing searches, and print the report.

    Args:
        methods: Names of the methods; empty for all that can be used here.
        noises: Names of the noises; empty for all.
        out: Folder of the results; an existing one is gone on with.

    Raises:
        ConfigError: A table, or an earlier result, cannot be used, or a name is unknown.
    """
    tables = {table.name: table for table in read_tables(folder)}
    wanted = list(
        pieces(
            list(tables.values()),
            methods=_methods(methods),
            noises=_known(noises, tuple(NOISES), "noise"),
            seeds=seeds,
            trials=trials,
        )
    )
    searches = make_missing(
        partial(_make, tables=tables),
        wanted,
        path=out / "results.jsonl",
        head={"format": FORMAT, "autotune": __version__},
        kind=Search,
        jobs=jobs,
        describe=lambda search: f"{search.piece}: {search.answers.cpu_s:.1f} s of CPU",
    )
    text = report(searches)
    print(text, end="")
    (out / "tables.md").write_text(text, encoding="utf-8")


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


def add_tables(commands: Commands) -> None:
    """Add the parser of ``tables``."""
    parser = commands.add_parser("tables", help="compare the tuner with its peers on tables of measured systems")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the tables, NAME.csv.gz")
    parser.add_argument("--seeds", type=parse_seeds, default=range(10), metavar="0-9", help="default: 0-9")
    parser.add_argument("--trials", type=parse_numbers, default=(30, 60, 120), help="default: 30,60,120")
    parser.add_argument("--method", action="append", default=[], help="of these methods only; may be repeated")
    parser.add_argument("--noise", action="append", default=[], help="under these noises only; may be repeated")
    add_pieces(parser, out="bench-tables")
    parser.set_defaults(run=_tables)


def _tables(arguments: argparse.Namespace) -> None:
    benchmark_tables(
        folder=arguments.folder,
        seeds=arguments.seeds,
        trials=arguments.trials,
        methods=arguments.method,
        noises=arguments.noise,
        jobs=arguments.jobs,
        out=arguments.out,
    )
