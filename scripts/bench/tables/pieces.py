"""Pieces of the benchmark: which method searches which table, from which start, under which noise, how often.

Slow methods search less often, in our tuner as on their own: the forest `FOREST_SEARCHES` times in all, from each start
in turn, a Gaussian process once from each start, to `GP_TRIALS` trials. Noises other than the usual one are tried on
`NOISY_TABLES` tables.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from scripts.bench.tables.noise import USUAL
from scripts.bench.tables.table import Table
from scripts.bench.tables.table_trainer import TableTrainer

STARTS: Sequence[str] = ("lowest", "median")
"""Starts: the lowest values, and the point with the median throughput."""

FOREST_SEARCHES = 60
GP_TRIALS = 60
NOISY_TABLES = 4


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One search to make.

    Attributes:
        method: Name of the method.
        table: Name of the table.
        digest: Hash of the table's content.
        noise: Name of the noise.
        start: Name of the start.
        seed: Seed of the noise and the method.
        trials: Numbers of trials after which the answer counts, ascending.
    """

    method: str
    table: str
    digest: str
    noise: str
    start: str
    seed: int
    trials: tuple[int, ...]

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{self.method} on {self.table}, {self.start}, {self.noise}, seed {self.seed}"


def pieces(
    tables: Sequence[Table],
    *,
    methods: Sequence[str],
    noises: Sequence[str],
    seeds: Sequence[int],
    trials: Sequence[int],
) -> Iterator[Piece]:
    """Yield all pieces, seed by seed: an interrupted benchmark has some of everything."""
    for seed, noise, (place, start) in product(seeds, noises, enumerate(STARTS)):
        for (number, table), method in product(enumerate(_tables_of(tables, noise)), methods):
            most = GP_TRIALS if method.startswith("GP") else max(trials)
            counted = tuple(some for some in sorted(trials) if some <= most)
            if counted and _has_turn(method, seed - seeds[0], (number + place) % 2, len(tables)):
                yield Piece(
                    method=method,
                    table=table.name,
                    digest=table.digest,
                    noise=noise,
                    start=start,
                    seed=seed,
                    trials=counted,
                )


def _tables_of(tables: Sequence[Table], noise: str) -> Sequence[Table]:
    """Return the tables for a noise: of others than the usual one, a few that are spread over the names."""
    return tables if noise == USUAL else tables[:: max(1, len(tables) // NOISY_TABLES)][:NOISY_TABLES]


def trainer_of(piece: Piece, table: Table) -> TableTrainer:
    """Return the trainer of a piece on its table."""
    # From all of these: else a random search would try the same points from both starts, under the same noise.
    seed = random.Random(f"{piece.table} {piece.start} {piece.noise} {piece.seed}").getrandbits(31)
    start = table.lowest if piece.start == "lowest" else table.median
    return TableTrainer(table=table, start=start, noise=piece.noise, seed=seed)


def _has_turn(method: str, turn: int, phase: int, tables: int) -> bool:
    if method.startswith("GP"):
        return turn == 0
    if method.startswith("forest"):
        return turn < FOREST_SEARCHES / tables and turn % 2 == phase
    return True
