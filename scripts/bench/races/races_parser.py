"""Command line of the benchmark of races; what it needs is imported when it is run."""

import argparse
from typing import TYPE_CHECKING

from autotune.clock import parse_duration_s

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

PROBLEMS = ("logistic", "network", "language", "speech")
"""Problems whose learning is known: three of `scripts.bench.races.trainers.learner`, and the shipped trainer's."""

FAULTS = ("drop", "repeat", "frozen")
"""Faults of the learner's data: a tenth never seen, the first batch again and again, the same noise in each epoch."""


def add_races(commands: "Commands") -> None:
    """Add the parser of ``races``."""
    parser = commands.add_parser("races", help="what races say of trainings whose learning is known")
    parser.add_argument("what", choices=["simulated", "equal", "batches", "faults", "memorising"])
    parser.add_argument("--times", type=int, default=20, help="races of a kind (default: 20)")
    parser.add_argument("--race", type=parse_duration_s, default="2m", help="length of a real race (default: 2m)")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS, help="with batches (default: all)")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, help="with faults (default: all)")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 64, 256], help="beside 16 (default: 4 64 256)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings to the loss (default: 3)")
    parser.add_argument(
        "--limit", type=parse_duration_s, default="60s", help="of a training to the loss (default: 60s)"
    )
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter with PyTorch; without it that is left out")
    parser.set_defaults(run=_races)


def _races(arguments: argparse.Namespace) -> None:
    from scripts.bench.races.benchmark_races import (
        batch_report,
        equal_report,
        fault_report,
        memorising_report,
        simulated_report,
    )

    if arguments.what == "simulated":
        report = simulated_report(arguments.times)
    elif arguments.what == "equal":
        report = equal_report(arguments.times, arguments.race, arguments.torch)
    elif arguments.what == "faults":
        report = fault_report(arguments.faults, arguments.times, arguments.race)
    elif arguments.what == "memorising":
        report = memorising_report(arguments.times, arguments.race)
    else:
        report = batch_report(
            arguments.problems,
            arguments.batches,
            seeds=arguments.seeds,
            race_s=arguments.race,
            limit_s=arguments.limit,
            with_torch=arguments.torch,
        )
    print(report, end="")
