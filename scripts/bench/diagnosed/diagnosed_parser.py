"""Command lines of the benchmarks of diagnoses; what they need is imported when they are run."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.clock import parse_duration_s

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_predicted_gains(commands: "Commands") -> None:
    """Add the parser of ``predicted-gains``."""
    parser = commands.add_parser("predicted-gains", help="gains that a diagnosis tells, and in longer trainings")
    parser.add_argument("--config", type=Path, required=True, help="config of the trainer")
    parser.add_argument("--budget", type=parse_duration_s, default="3m", help="of the diagnosis (default: 3m)")
    parser.add_argument(
        "--for", dest="for_s", type=parse_duration_s, default="60s", help="of a training (default: 60s)"
    )
    parser.set_defaults(run=_predicted_gains)


def add_saved_time(commands: "Commands") -> None:
    """Add the parser of ``saved-time``."""
    parser = commands.add_parser("saved-time", help="time that a diagnosis first saves a search")
    parser.add_argument("--seeds", type=int, default=100, help="number of simulated workloads (default: 100)")
    parser.add_argument("--budget", type=parse_duration_s, default="15m", help="of each search (default: 15m)")
    parser.add_argument("--record", type=Path, metavar="FILE.jsonl", help="outcomes as they come; gone on with")
    parser.set_defaults(run=_saved_time)


def _predicted_gains(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of diagnoses.
    from scripts.bench.diagnosed.predicted_gains import compare_gains

    print(compare_gains(arguments.config, budget_s=arguments.budget, for_s=arguments.for_s, command=_command()), end="")


def _saved_time(arguments: argparse.Namespace) -> None:
    from scripts.bench.diagnosed.saved_time import benchmark_saved_time

    print(
        benchmark_saved_time(
            seeds=arguments.seeds, budget_s=arguments.budget, record=arguments.record, command=_command()
        ),
        end="",
    )


def _command() -> str:
    return shlex.join(["python", "-m", "scripts.bench", *sys.argv[1:]])
