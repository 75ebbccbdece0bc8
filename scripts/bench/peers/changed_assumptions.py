"""Benchmark of our search on scenarios with one assumption of the simulator changed, beside TPE on the same runner.

Every finished search is a line of ``assumptions.jsonl``, so that the same command resumes after an interruption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from autotune import __version__
from autotune.clock import format_duration
from scripts.bench.markdown import markdown_table, regret_cells
from scripts.bench.peers.anytime_curve import OURS
from scripts.bench.peers.harness import Harness
from scripts.bench.peers.head_to_head import tuned
from scripts.bench.peers.methods import tpe
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.simulation.changed_scenarios import Change, ChangedScenario
from scripts.bench.simulation.scenarios import scenario

_TPE = "TPE, our runner"
_METHODS = (OURS, _TPE)
_HEAD = {"autotune": __version__}  # of each line of results


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One search to make."""

    change: Change
    seed: int
    method: str
    budgets_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Search that was made, and the regret of its answer after each budget, 0..1."""

    piece: _Piece
    regrets: tuple[float, ...]


def benchmark_assumptions(*, seeds: Sequence[int], budgets_s: Sequence[float], jobs: int, out: Path) -> str:
    """Make the missing searches.

    Args:
        seeds: Numbers of the scenarios.
        budgets_s: Budgets; each is a search of its own for our search.
        jobs: Number of processes.
        out: Folder of the results; an existing one is gone on with.

    Returns:
        The report, as Markdown.

    Raises:
        ConfigError: The folder holds results of another version.
    """
    wanted = [
        _Piece(change=change, seed=seed, method=method, budgets_s=tuple(sorted(budgets_s)))
        for seed, change, method in product(seeds, Change, _METHODS)
    ]
    searches = make_missing(
        _make,
        wanted,
        path=out / "assumptions.jsonl",
        head=_HEAD,
        kind=_Search,
        jobs=jobs,
        describe=lambda search: f"{search.piece.method}, {search.piece.change.value}, scenario {search.piece.seed}",
    )
    return _report(searches)


def _report(searches: Sequence[_Search]) -> str:
    """Return a table of all regrets."""
    rows = []
    for change, (number, budget_s), method in product(Change, enumerate(searches[0].piece.budgets_s), _METHODS):
        regrets = [
            search.regrets[number]
            for search in searches
            if search.piece.change is change and search.piece.method == method
        ]
        rows.append([change.value, format_duration(budget_s), method, *regret_cells(regrets)])
    heads = ["changed assumption", "after", "method", "median regret", "mean", "p90"]
    return f"{len({search.piece.seed for search in searches})} scenarios\n\n{markdown_table(heads, rows)}"


def _make(piece: _Piece) -> _Search:
    one = ChangedScenario(scenario=scenario(piece.seed), change=piece.change)
    with work_folder() as folder:
        if piece.method == OURS:
            curves = [tuned(one, budget_s, folder / f"{budget_s:g}")[0] for budget_s in piece.budgets_s]
            regrets = [curve.regret_at(curve.budget_s) for curve in curves]
        else:
            harness = Harness(one, max(piece.budgets_s), folder, method=piece.method)
            harness.follow(tpe(harness.problem.space, piece.seed), harness.measure_as_ours)
            regrets = [harness.curve(None).regret_at(budget_s) for budget_s in piece.budgets_s]
    return _Search(piece=piece, regrets=tuple(regrets))
