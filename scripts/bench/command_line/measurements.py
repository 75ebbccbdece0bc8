"""Command lines of the benchmarks of real trainings, of GPUs and of pipelines."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.bench.drift.benchmark_drift import benchmark_drift
from scripts.bench.grid import measure_grid, parse_axis
from scripts.bench.oscillation_verdicts import benchmark_oscillation

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_grid(commands: "Commands") -> None:
    """Add the parser of ``grid``."""
    parser = commands.add_parser("grid", help="measure every combination of some values, in random order")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2, help="trials of each point (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--out", type=Path, help="where the raw numbers go, as JSON lines")
    parser.add_argument(
        "axes", nargs="+", metavar="KEY=V1,V2", help="e.g. data.batch_size=8,32; data.cache=none,memory"
    )
    parser.set_defaults(run=_grid)


def _grid(arguments: argparse.Namespace) -> None:
    measure_grid(
        arguments.config,
        dict(parse_axis(axis) for axis in arguments.axes),
        repeats=arguments.repeats,
        seed=arguments.seed,
        state_dir=arguments.state_dir,
        out=arguments.out,
    )


def add_oscillation(commands: "Commands") -> None:
    """Add the parser of ``oscillation``."""
    parser = commands.add_parser("oscillation", help="judge simulated GPU utilization, and compare with the truth")
    parser.add_argument("--scenarios", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_oscillation)


def _oscillation(arguments: argparse.Namespace) -> None:
    print(benchmark_oscillation(scenarios=arguments.scenarios, seed=arguments.seed), end="")


def add_drift(commands: "Commands") -> None:
    """Add the parser of ``drift``."""
    parser = commands.add_parser("drift", help="false alarms, delays and causes of the daemon's watch over trainings")
    parser.add_argument("--trainings", type=int, default=1000, help="that nothing happens to (default: 1000)")
    parser.add_argument("--delays", type=int, default=200, help="that become slower, of each size (default: 200)")
    parser.add_argument("--starts", type=int, default=2000, help="held against what was confirmed (default: 2000)")
    parser.add_argument("--cases", type=int, default=200, help="staged causes (default: 200)")
    parser.set_defaults(run=_drift)


def _drift(arguments: argparse.Namespace) -> None:
    benchmark_drift(
        trainings=arguments.trainings, delays=arguments.delays, starts=arguments.starts, cases=arguments.cases
    )
