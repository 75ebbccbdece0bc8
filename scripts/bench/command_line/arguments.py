"""Arguments that benchmarks share: their types, and groups of them."""

import argparse
from pathlib import Path

from autotune.durations import parse_duration_s
from scripts.bench.grounds import Grounds


def parse_seeds(text: str) -> range:
    """Parse ``0-31``, both ends included, or a single seed."""
    first, dash, last = text.partition("-")
    seeds = range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"{text!r} names no seeds")
    return seeds


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse ``30,60``: numbers above 0."""
    numbers = tuple(sorted({int(number) for number in text.split(",")}))
    if numbers[0] < 1:
        raise ValueError(f"{text!r} are no numbers of trials")
    return numbers


def parse_budgets_s(text: str) -> tuple[float, ...]:
    """Parse ``5m,30m``."""
    return tuple(sorted({parse_duration_s(budget) for budget in text.split(",")}))


def add_pieces(parser: argparse.ArgumentParser, *, out: str) -> None:
    """Add the options of a benchmark that is made in pieces, see `scripts.bench.resumable`."""
    parser.add_argument("--jobs", type=int, default=1, help="processes at work (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the results; gone on with")


def add_grounds(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark of searches on tables and on the simulator."""
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="folder of tables (default: the simulator alone)"
    )
    parser.add_argument("--seeds", type=parse_seeds, default=range(2), metavar="0-9", help="on tables (default: 0-1)")
    parser.add_argument(
        "--scenarios", type=parse_seeds, default=range(1000, 1024), metavar="0-31", help="default: 1000-1023"
    )


def grounds_of(arguments: argparse.Namespace) -> Grounds:
    """Return what the options of `add_grounds` and `add_pieces` say."""
    return Grounds(
        folder=arguments.folder,
        seeds=arguments.seeds,
        scenarios=arguments.scenarios,
        jobs=arguments.jobs,
        out=arguments.out,
    )
