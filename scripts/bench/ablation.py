"""Ablation: the search with one of its parts off, on measured tables and on the simulator.

A part is switched off by other constants of the sampler, in the process that makes the search. Every finished search is
a line of ``ablation.jsonl``, so that the same command resumes after an interruption.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from autotune import __version__
from autotune.clock import format_duration
from autotune.records import Values
from autotune.sampler.other_samplers import OURS
from autotune.space.space import Space
from scripts.bench.grounds import Grounds
from scripts.bench.markdown import markdown_table, regret_cells
from scripts.bench.peers.harness import Harness
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.simulation.scenarios import scenario
from scripts.bench.tables.noise import USUAL
from scripts.bench.tables.pieces import Piece, pieces, trainer_of
from scripts.bench.tables.searches import ENDLESS_S, EXPLORING, tune
from scripts.bench.tables.table import Table, read_tables

WHOLE = "nothing"
"""Name of the search with all of its parts."""

_NEARLY_NONE = (math.log(1e-5), 0.01)  # prior of a variance
Constants = Mapping[tuple[str, str], Any]
"""Values of constants by module and name."""

_MODEL, _ACQUISITION = "autotune.sampler.gaussian_process", "autotune.sampler.acquisition"
PARTS: Mapping[str, Constants] = {
    WHOLE: {},
    "joint effects": {(_MODEL, "_JOINT"): _NEARLY_NONE},
    "main effects": {(_MODEL, "_ADDITIVE"): _NEARLY_NONE},
    "a point's own deviation (8 % → 1 %)": {(_MODEL, "_OWN"): (math.log(0.01**2), 0.01)},
    "fitted hyperparameters": {(_MODEL, "_STEPS"): 0},
    "allowance for the error of the model": {(_ACQUISITION, "_MODEL_ERROR_FACTOR"): 1.0},
    "initial design at random": {("autotune.search.schedule", "_MOST_DESIGN_POINTS"): 0},
    "repeats": {(_ACQUISITION, "MOST_TRIALS_OF_A_POINT"): 1},
    "chances of success": {(_ACQUISITION, "_RANDOM_FAILURE_VARIANCE"): 1e6},
    "the model of what an expert expects": {(_ACQUISITION, "_EXPECTED_GAIN"): 0.0},
    "doubt of what an expert expects": {(_MODEL, "_ADVICE_SD"): 1e-3},
    "simplification of the answer": {
        ("autotune.search.state", "INDISTINGUISHABLE"): 0.0,
        ("autotune.search.confirm", "INDISTINGUISHABLE"): 0.0,
    },
}
"""Constants that switch each part off; the first entry leaves all on."""

_TRIALS = (60, 120)  # on tables
_BUDGETS_S = (300.0, 1800.0)  # on the simulator
_NEEDLESS = 0.99  # of the answer's speed: a change without which that much is left is not needed


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One search to make: on a table, else on a scenario."""

    part: str
    table: Piece | None = None
    scenario: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Search that was made; regrets and numbers of needless changes by trials, or by the budget in seconds."""

    piece: _Piece
    regrets: Mapping[float, float]
    needless: Mapping[float, int]


def benchmark_ablation(grounds: Grounds) -> str:
    """Make the missing searches.

    Args:
        grounds: Tables and scenarios, and where the results go.

    Returns:
        The report, as Markdown; it is written there, too.

    Raises:
        ConfigError: A table, or an earlier result, cannot be used.
    """
    tables = {table.name: table for table in read_tables(grounds.folder)} if grounds.folder else {}
    searches = make_missing(
        partial(_make, tables=tables),
        list(_pieces(list(tables.values()), grounds)),
        path=grounds.out / "ablation.jsonl",
        head={"autotune": __version__},
        kind=_Search,
        jobs=grounds.jobs,
        describe=lambda search: f"without {search.piece.part}",
    )
    report = _report(searches)
    (grounds.out / "ablation.md").write_text(report, encoding="utf-8")
    return report


def _pieces(tables: Sequence[Table], grounds: Grounds) -> Iterator[_Piece]:
    """Yield all pieces, those of all parts in turn: an interrupted benchmark has some of everything."""
    on_tables = pieces(tables, methods=[EXPLORING], noises=[USUAL], seeds=grounds.seeds, trials=_TRIALS)
    for piece, part in product(on_tables, PARTS):
        yield _Piece(part=part, table=piece)
    for number, part in product(grounds.scenarios, PARTS):
        yield _Piece(part=part, scenario=number)


def _report(searches: Sequence[_Search]) -> str:
    parts = []
    for on_tables in (True, False):
        some = [search for search in searches if (search.piece.table is not None) == on_tables]
        if not some:
            continue
        budgets = list(some[0].regrets)
        names = [f"{budget:g} trials" if on_tables else format_duration(budget) for budget in budgets]
        rows = []
        for part in PARTS:
            those = [search for search in some if search.piece.part == part]
            cells = [part]
            for budget in budgets:
                cells.append(", ".join(regret_cells([search.regrets[budget] for search in those])))
                cells.append(f"{np.mean([search.needless[budget] for search in those]):.2f}")
            rows.append(cells)
        heads = ["without", *(head for name in names for head in (f"regret after {name}", "needless changes"))]
        ground = "Measured tables" if on_tables else "Simulator"
        parts.append(f"## {ground}, {len(some) // len(PARTS)} searches each\n\n{markdown_table(heads, rows)}")
    return "Regret as median, mean, 90th percentile.\n\n" + "\n\n".join(parts) + "\n"


def _make(piece: _Piece, tables: Mapping[str, Table]) -> _Search:
    with work_folder() as folder, constants(PARTS[piece.part]):
        found = _on_table(piece.table, tables, folder) if piece.table else _on_scenario(piece.scenario or 0, folder)
    return _Search(
        piece=piece,
        regrets={budget: regret for budget, (regret, _) in found.items()},
        needless={budget: number for budget, (_, number) in found.items()},
    )


def _on_table(piece: Piece, tables: Mapping[str, Table], folder: Path) -> dict[float, tuple[float, int]]:
    trainer = trainer_of(piece, tables[piece.table])
    harness = Harness(trainer, ENDLESS_S, folder / "search", method=EXPLORING)
    tune(harness, OURS, trials=max(piece.trials), whole=False)
    answers = {number: harness.answer_after(number) for number in piece.trials}
    space = harness.problem.space
    return {
        number: (trainer.regret(values), needless_changes(trainer.speed, values, space))
        for number, values in answers.items()
    }


def _on_scenario(number: int, folder: Path) -> dict[float, tuple[float, int]]:
    one = scenario(number)
    found = {}
    for budget_s in _BUDGETS_S:
        harness = Harness(one, budget_s, folder / f"{budget_s:g}", method=OURS)
        harness.search(harness.budget())
        curve = harness.curve(None)
        found[budget_s] = (curve.regret_at(budget_s), needless_changes(one.speed, curve.answer, harness.problem.space))
    return found


def needless_changes(speed: Callable[[Values], float], values: Values, space: Space) -> int:
    """Return the number of changes without which a point is truly as fast, or slower by less than 1 %."""
    least = _NEEDLESS * speed(values)
    without = (speed({**values, path: space.baseline[path]}) for path in space.changes(values))
    return sum(other >= least for other in without)


@contextmanager
def constants(replaced: Constants) -> Iterator[None]:
    """Give constants other values for a while.

    Raises:
        AttributeError: There is no such constant.
    """
    before = {(module, name): getattr(importlib.import_module(module), name) for module, name in replaced}
    try:
        for (module, name), value in replaced.items():
            setattr(importlib.import_module(module), name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(importlib.import_module(module), name, value)
