"""Benchmark of promises: what a search foretells to gain, and what it truly gained, on tables and on the simulator.

Every finished search is a line of ``promises.jsonl``, so that the same command resumes after an interruption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune import __version__
from scripts.bench.grounds import Grounds
from scripts.bench.peers.anytime_curve import OURS
from scripts.bench.peers.harness import Harness
from scripts.bench.promises.calibration_report import WatchedSearch, calibration_report
from scripts.bench.promises.moments import Moment, watched_search
from scripts.bench.promises.small_parts import FEWEST_POINTS, MOST_POINTS, small_parts
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.simulation.scenarios import scenario
from scripts.bench.tables.noise import USUAL
from scripts.bench.tables.pieces import Piece, pieces, trainer_of
from scripts.bench.tables.searches import ENDLESS_S, EXPLORING, budget_of
from scripts.bench.tables.table import Table, read_tables

FORMAT = 3
"""Version of the lines of ``promises.jsonl``."""

_TRIALS = 120  # of a search on a table
_TRIALS_AHEAD = 20  # there, in place of ten minutes
_BUDGET_S = 1800.0  # of a search on the simulator
_AHEAD_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ScenarioPiece:
    """One search to make on the simulator.

    Attributes:
        scenario: Number of the scenario.
        budget_s: Budget of the search.
    """

    scenario: int
    budget_s: float

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{OURS} on scenario {self.scenario}"


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Search that was made."""

    table_piece: Piece | None = None
    scenario_piece: ScenarioPiece | None = None
    moments: tuple[Moment, ...]

    @property
    def piece(self) -> Piece | ScenarioPiece:
        """The piece that it is of."""
        piece = self.table_piece or self.scenario_piece
        assert piece
        return piece


def benchmark_promises(grounds: Grounds) -> str:
    """Make the missing searches.

    Args:
        grounds: Tables and scenarios, and where the results go.

    Returns:
        The report, as Markdown; it is written there, too.

    Raises:
        ConfigError: A table, or an earlier result, cannot be used.
    """
    whole = read_tables(grounds.folder) if grounds.folder else []
    parts = [part for table in whole for part in small_parts(table)]
    tables = {table.name: table for table in (*whole, *parts)}
    searches = make_missing(
        partial(_make, tables=tables),
        list(_pieces(list(tables.values()), grounds)),
        path=grounds.out / "promises.jsonl",
        head={"format": FORMAT, "autotune": __version__},
        kind=_Search,
        jobs=grounds.jobs,
        describe=lambda search: str(search.piece),
    )
    report = calibration_report(
        {
            f"Measured tables, {_TRIALS} trials, {_TRIALS_AHEAD} more for ten minutes": _on(searches, whole),
            f"Small parts of these tables, {FEWEST_POINTS} to {MOST_POINTS} points": _on(searches, parts),
            f"Simulator, {_BUDGET_S / 60:g} minutes": [
                WatchedSearch(moments=search.moments, ahead_s=_AHEAD_S) for search in searches if search.scenario_piece
            ],
        }
    )
    (grounds.out / "promises.md").write_text(report, encoding="utf-8")
    return report


def _on(searches: Sequence[_Search], tables: Sequence[Table]) -> list[WatchedSearch]:
    """Return the searches on these tables."""
    names = {table.name for table in tables}
    return [
        WatchedSearch(moments=search.moments, trials_ahead=_TRIALS_AHEAD)
        for search in searches
        if search.table_piece and search.table_piece.table in names
    ]


def _pieces(tables: Sequence[Table], grounds: Grounds) -> Iterator[Piece | ScenarioPiece]:
    yield from pieces(tables, methods=[EXPLORING], noises=[USUAL], seeds=grounds.seeds, trials=[_TRIALS])
    for number in grounds.scenarios:
        yield ScenarioPiece(scenario=number, budget_s=_BUDGET_S)


def _make(piece: Piece | ScenarioPiece, tables: dict[str, Table]) -> _Search:
    with work_folder() as folder:
        if isinstance(piece, Piece):
            return _Search(table_piece=piece, moments=tuple(_on_table(piece, tables[piece.table], folder)))
        return _Search(scenario_piece=piece, moments=tuple(_on_scenario(piece, folder)))


def _on_table(piece: Piece, table: Table, folder: Path) -> list[Moment]:
    trainer = trainer_of(piece, table)
    harness = Harness(trainer, ENDLESS_S, folder, method=piece.method)
    budget = budget_of(harness, trials=max(piece.trials), whole=False)
    return watched_search(
        harness, trainer, budget, [budget.note], promised_to_users=lambda state: state.gain_of(_TRIALS_AHEAD)
    )


def _on_scenario(piece: ScenarioPiece, folder: Path) -> list[Moment]:
    one = scenario(piece.scenario)
    harness = Harness(one, piece.budget_s, folder, method=OURS)
    return watched_search(
        harness, one, harness.budget(), [], promised_to_users=lambda state: state.gain_of_ten_minutes()
    )
