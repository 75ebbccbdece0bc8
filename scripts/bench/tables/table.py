"""Table of a measured system: its options, and the throughput of each combination that ran.

A file ``NAME.csv.gz``: a header, one row a combination, one column an option, the last column ``throughput`` (higher is
better). Options are ordered numbers unless the name of their column ends in ``:categorical``. A combination without a
row, or with a throughput of 0, does not run.
"""

import csv
import gzip
import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.errors import ConfigError
from autotune.records import Scalar

SUFFIX = ".csv.gz"
_THROUGHPUT = "throughput"
_CATEGORICAL = ":categorical"
_REMEDY = "See scripts/bench/tables/table.py for the format."

Row = tuple[Scalar, ...]
"""Value of each option, in the order of the columns."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Option of the system.

    Attributes:
        name: Name of its column.
        choices: All values in the table; ascending if they are ordered.
        ordered: True for numbers, False for categories, which are texts.
    """

    name: str
    choices: tuple[Scalar, ...]
    ordered: bool


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured system.

    Attributes:
        name: Name of the file, without its suffix.
        digest: Hash of the content: results of another table of that name are no results of this one.
        options: Options, in the order of the columns.
        throughputs: Throughput of each combination that ran, above 0.
    """

    name: str
    digest: str
    options: Sequence[Option]
    throughputs: Mapping[Row, float]

    @property
    def combinations(self) -> int:
        """Number of combinations, with those that do not run."""
        return math.prod(len(option.choices) for option in self.options)

    @cached_property
    def best(self) -> Row:
        """Combination with the highest throughput."""
        return max(self.throughputs, key=lambda row: self.throughputs[row])

    @cached_property
    def lowest(self) -> Row:
        """Combination of the lowest values; the next one in the order of the columns that runs, if that does not."""
        places = [{choice: place for place, choice in enumerate(option.choices)} for option in self.options]
        return min(
            self.throughputs, key=lambda row: tuple(place[value] for place, value in zip(places, row, strict=True))
        )

    @cached_property
    def median(self) -> Row:
        """Combination with the median throughput, the lower of the two middle ones."""
        return sorted(self.throughputs, key=lambda row: self.throughputs[row])[(len(self.throughputs) - 1) // 2]

    def regret(self, row: Row) -> float:
        """Return the share of the best throughput that a combination leaves unused; 1.0 if it does not run."""
        return 1.0 - self.throughputs.get(row, 0.0) / self.throughputs[self.best]


def read_tables(folder: Path) -> list[Table]:
    """Read all tables of a folder, by name.

    Raises:
        ConfigError: There is none, or one of them cannot be used.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise ConfigError(
            f"there is no table ({SUFFIX}) in this folder", where=str(folder), remedy="Name the folder of the tables."
        )
    return [read_table(path) for path in paths]


def read_table(path: Path) -> Table:
    """Read and check one table.

    Raises:
        ConfigError: It cannot be read, or is no table; file and line are named.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"the table cannot be read: {error}", where=str(path), remedy=_REMEDY) from error
    lines = list(csv.reader(text.splitlines()))
    names = _options(lines[0] if lines else [], f"{path}:1")
    throughputs: dict[Row, float] = {}
    for number, cells in enumerate(lines[1:], start=2):
        where = f"{path}:{number}"
        if len(cells) != len(names) + 1:
            raise _wrong(f"{len(cells)} cells instead of {len(names) + 1}", where)
        row = tuple(_value(name, cell, where) for name, cell in zip(names, cells, strict=False))
        if row in throughputs:
            raise _wrong("this combination has a row already", where)
        throughputs[row] = _number(_THROUGHPUT, cells[-1], where)
        if throughputs[row] < 0:
            raise _wrong(f"{_THROUGHPUT} is {cells[-1]}, below 0", where)
    throughputs = {row: throughput for row, throughput in throughputs.items() if throughput > 0}
    if len(throughputs) < 2:
        raise _wrong("fewer than two combinations ran", str(path))
    return Table(
        name=path.name.removesuffix(SUFFIX),
        digest=hashlib.sha256(text.encode()).hexdigest()[:12],
        options=[_option(name, {row[column] for row in throughputs}) for column, name in enumerate(names)],
        throughputs=throughputs,
    )


def _options(header: Sequence[str], where: str) -> Sequence[str]:
    """Return the names of the columns of options."""
    if len(header) < 2 or header[-1] != _THROUGHPUT:
        raise _wrong(f"the header does not end in {_THROUGHPUT} after at least one option", where)
    if len(set(header)) < len(header):
        raise _wrong("two columns have the same name", where)
    return header[:-1]


def _option(name: str, values: set[Scalar]) -> Option:
    ordered = not name.endswith(_CATEGORICAL)
    choices = sorted(values, key=lambda value: value if isinstance(value, int | float) else str(value))
    return Option(name=name.removesuffix(_CATEGORICAL), choices=tuple(choices), ordered=ordered)


def _value(name: str, cell: str, where: str) -> Scalar:
    if name.endswith(_CATEGORICAL):
        return cell
    number = _number(name, cell, where)
    return int(number) if number.is_integer() else number


def _number(name: str, cell: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(f"{name} is {cell!r}, no number", where)
    return number


def _wrong(message: str, where: str) -> ConfigError:
    return ConfigError(message, where=where, remedy=_REMEDY)
