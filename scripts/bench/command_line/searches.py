"""Command lines of the benchmarks of searches, simulated or on tables; what some need is imported when they are run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.clock import parse_duration_s
from scripts.bench.command_line.arguments import (
    add_grounds,
    add_pieces,
    grounds_of,
    parse_budgets_s,
    parse_numbers,
    parse_seeds,
)
from scripts.bench.confirmation import benchmark_confirmation
from scripts.bench.landscapes import benchmark_landscapes
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


def add_assumptions(commands: "Commands") -> None:
    """Add the parser of ``assumptions``."""
    parser = commands.add_parser(
        "assumptions", help="the search on simulated trainers with one assumption changed, beside TPE"
    )
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(1000, 1048), metavar="0-31", help="default: 1000-1047"
    )
    parser.add_argument("--budgets", type=parse_budgets_s, default="5m,30m", help="default: %(default)s")
    add_pieces(parser, out="bench-search")
    parser.set_defaults(run=_assumptions)


def _assumptions(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.peers.changed_assumptions import benchmark_assumptions

    print(
        benchmark_assumptions(
            seeds=arguments.seeds, budgets_s=arguments.budgets, jobs=arguments.jobs, out=arguments.out
        )
    )


def add_siblings(commands: "Commands") -> None:
    """Add the parser of ``siblings``."""
    parser = commands.add_parser("siblings", help="the search on a machine whose sibling has searched already")
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(1000, 1100), metavar="0-31", help="default: 1000-1099"
    )
    parser.add_argument("--budget", type=parse_duration_s, default=600.0, help="of each search (default: 10m)")
    add_pieces(parser, out="bench-siblings")
    parser.set_defaults(run=_siblings)


def _siblings(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.siblings import benchmark_siblings

    print(
        benchmark_siblings(seeds=arguments.seeds, budget_s=arguments.budget, jobs=arguments.jobs, out=arguments.out),
        end="",
    )


def add_placement(commands: "Commands") -> None:
    """Add the parser of ``placement``."""
    parser = commands.add_parser("placement", help="how well searches place data and model on two GPUs")
    parser.add_argument("--seeds", type=parse_seeds, default=range(100), metavar="0-31", help="default: 0-99")
    parser.add_argument("--budget", type=parse_duration_s, default=600.0, help="of each search (default: 10m)")
    add_pieces(parser, out="bench-placement")
    parser.set_defaults(run=_placement)


def _placement(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.placement import benchmark_placement

    print(
        benchmark_placement(seeds=arguments.seeds, budget_s=arguments.budget, jobs=arguments.jobs, out=arguments.out),
        end="",
    )


def add_landscapes(commands: "Commands") -> None:
    """Add the parser of ``landscapes``."""
    parser = commands.add_parser(
        "landscapes", help="compare how rugged simulated trainers are with measured systems, by three statistics"
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="folder of measured tables, NAME.csv.gz")
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(1000, 1048), metavar="0-31", help="default: 1000-1047"
    )
    parser.set_defaults(run=_landscapes)


def _landscapes(arguments: argparse.Namespace) -> None:
    print(benchmark_landscapes(folder=arguments.folder, seeds=arguments.seeds))


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


def add_ablation(commands: "Commands") -> None:
    """Add the parser of ``ablation``."""
    parser = commands.add_parser("ablation", help="the search with one of its parts off, on tables and the simulator")
    add_grounds(parser)
    add_pieces(parser, out="bench-ablation")
    parser.set_defaults(run=_ablation)


def _ablation(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.ablation import benchmark_ablation

    print(benchmark_ablation(grounds_of(arguments)), end="")


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


def add_machines(commands: "Commands") -> None:
    """Add the parser of ``machines``."""
    parser = commands.add_parser("machines", help="several machines on one study, simulated in virtual time")
    parser.add_argument(
        "--machines", type=parse_numbers, default=(1, 2, 4, 8), metavar="1,2,4,8", help="default: 1,2,4,8"
    )
    parser.add_argument("--workloads", type=int, default=50, help="scenarios with something to find (default: 50)")
    parser.add_argument("--aa", type=int, default=200, help="searches with nothing to find (default: 200)")
    parser.add_argument("--black-holes", type=int, default=100, help="searches with a black hole (default: 100)")
    parser.add_argument("--confirmations", type=int, default=2000, help="under each noise (default: 2000)")
    parser.add_argument("--budget", type=parse_duration_s, default="10m", help="of each search (default: 10m)")
    add_pieces(parser, out="bench-machines")
    parser.set_defaults(run=_machines)


def _machines(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from scripts.bench.joint.benchmark_machines import MachinesBenchmark, benchmark_machines

    benchmark = MachinesBenchmark(
        machines=arguments.machines,
        workloads=arguments.workloads,
        nulls=arguments.aa,
        black_holes=arguments.black_holes,
        confirmations=arguments.confirmations,
        budget_s=arguments.budget,
        jobs=arguments.jobs,
        out=arguments.out,
    )
    print(benchmark_machines(benchmark), end="")


def add_workers(commands: "Commands") -> None:
    """Add the parser of ``workers``."""
    parser = commands.add_parser("workers", help="measure worker processes on one study, with trials that only wait")
    parser.add_argument("--workers", type=int, default=8, help="compared with one (default: 8)")
    parser.add_argument(
        "--storage",
        metavar="ADDRESS",
        help="e.g. journal:FOLDER (default: what AUTOTUNE_STORAGE says, which may hold a password; else a journal in a "
        "temporary folder). The studies are deleted in the end.",
    )
    parser.add_argument(
        "--trials", type=int, default=40, help="counted of each worker, on average; 0 for none (default: 40)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="in which three workers go; 0 for none (default: 1)")
    parser.add_argument("--frozen", type=parse_duration_s, default="90s", help="time for one of these (default: 90s)")
    parser.set_defaults(run=_workers)


def _workers(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without Optuna.
    from scripts.bench.workers.benchmark_workers import WorkersBenchmark, benchmark_workers

    benchmark = WorkersBenchmark(
        storage=arguments.storage,
        workers=arguments.workers,
        trials=arguments.trials,
        rounds=arguments.rounds,
        frozen_s=arguments.frozen,
    )
    print(benchmark_workers(benchmark), end="")
