"""Command lines of the benchmarks of searches, simulated or on tables; what some need is imported when they are run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.bench.command_line.arguments import (
    add_grounds,
    add_pieces,
    grounds_of,
    parse_budgets_s,
    parse_numbers,
    parse_seeds,
)
from scripts.bench.confirmation import benchmark_confirmation
from scripts.bench.simulation.calibration import calibrate

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_search(commands: "Commands") -> None:
    """Add the parser of ``search``."""
    parser = commands.add_parser("search", help="compare the search with other ways to tune, on simulated trainers")
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(100), metavar="0-31", help="scenarios (default: 0-99)"
    )
    parser.add_argument("--aa", type=int, default=0, metavar="N", help="searches with nothing to find (default: 0)")
    parser.add_argument("--report", action="store_true", help="the scenarios that are kept for reports, and 2,000 A/A")
    parser.add_argument("--budgets", type=parse_budgets_s, default="5m,30m", help="default: %(default)s")
    add_pieces(parser, out="bench-search")
    parser.set_defaults(run=_search)


def _search(arguments: argparse.Namespace) -> None:
    # Here, because it needs matplotlib, which other benchmarks do without.
    from scripts.bench.peers.benchmark import REPORT_NULLS, REPORT_SEEDS, Benchmark, benchmark_search

    benchmark_search(
        Benchmark(
            seeds=REPORT_SEEDS if arguments.report else arguments.seeds,
            nulls=REPORT_NULLS if arguments.report else arguments.aa,
            budgets_s=arguments.budgets,
            jobs=arguments.jobs,
            out=arguments.out,
        )
    )


def add_tables(commands: "Commands") -> None:
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
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.tables.benchmark_tables import TablesBenchmark, benchmark_tables

    benchmark_tables(
        TablesBenchmark(
            folder=arguments.folder,
            seeds=arguments.seeds,
            trials=arguments.trials,
            methods=arguments.method,
            noises=arguments.noise,
            jobs=arguments.jobs,
            out=arguments.out,
        )
    )


def add_promises(commands: "Commands") -> None:
    """Add the parser of ``promises``."""
    parser = commands.add_parser("promises", help="what a search promises to gain, beside what it truly gained")
    add_grounds(parser)
    add_pieces(parser, out="bench-promises")
    parser.set_defaults(run=_promises)


def _promises(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.promises.benchmark_promises import benchmark_promises

    print(benchmark_promises(grounds_of(arguments)), end="")


def add_calibrate(commands: "Commands") -> None:
    """Add the parser of ``calibrate``."""
    parser = commands.add_parser(
        "calibrate", help="fit the simulated trainers to measured ones, and say how well they agree"
    )
    parser.set_defaults(run=lambda _arguments: calibrate())


def add_confirmation(commands: "Commands") -> None:
    """Add the parser of ``confirmation``."""
    parser = commands.add_parser("confirmation", help="judge simulated confirmations, and compare with the truth")
    parser.add_argument("--searches", type=int, default=2000, help="under each noise (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_confirmation)


def _confirmation(arguments: argparse.Namespace) -> None:
    print(benchmark_confirmation(searches=arguments.searches, seed=arguments.seed), end="")
