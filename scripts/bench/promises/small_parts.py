"""Small parts of a table: a few of its options vary, and the others stay.

In a table of thousands of points a search hardly runs out of points that are worth a trial; users often name two or
three knobs.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from autotune.records import Scalar
from scripts.bench.tables.table import Option, Row, Table

FEWEST_POINTS = 9
MOST_POINTS = 40
"""Most points of a part that run."""

_PARTS = 2
_OPTIONS = (2, 3, 4)
_DRAWS = 300


def small_parts(table: Table) -> list[Table]:
    """Return some parts of a table, the same ones each time; fewer, or none, of one without such parts."""
    rng = random.Random(table.digest)
    columns = range(len(table.options))
    rows = list(table.throughputs)
    found: dict[str, Table] = {}
    for _ in range(_DRAWS):
        free = rng.sample(columns, min(rng.choice(_OPTIONS), len(columns)))
        part = _part(table, rng.choice(rows), sorted(free))
        if FEWEST_POINTS <= len(part.throughputs) <= MOST_POINTS and len(free) < len(columns):
            found[part.name] = part
        if len(found) == _PARTS:
            break
    return list(found.values())


def _part(table: Table, row: Row, free: Sequence[int]) -> Table:
    """Return the part in which these columns vary, and the others are as in a row."""
    fixed = [column for column in range(len(row)) if column not in free]
    rows = [other for other in table.throughputs if all(other[column] == row[column] for column in fixed)]
    varying = [column for column in free if len({other[column] for other in rows}) > 1]
    held = ", ".join(f"{table.options[column].name}={row[column]}" for column in fixed)
    return Table(
        name=f"{table.name} with {held}",
        digest=table.digest,
        options=[_only(table.options[column], {other[column] for other in rows}) for column in varying],
        throughputs={tuple(other[column] for column in varying): table.throughputs[other] for other in rows},
    )


def _only(option: Option, values: set[Scalar]) -> Option:
    return replace(option, choices=tuple(choice for choice in option.choices if choice in values))
