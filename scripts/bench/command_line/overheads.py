"""Command lines of the benchmarks of what autotune itself costs."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.study.storage.address import SaidAddress, parse_address, said_by_environment
from scripts.bench.overhead.collector_cost import measure_collector
from scripts.bench.overhead.monitor_cost import measure_monitor
from scripts.bench.overhead.observer import benchmark_observer
from scripts.bench.overhead.proposals import time_choices
from scripts.bench.overhead.start import measure_start
from scripts.bench.overhead.storage_cost import measure_storages, temporary_addresses

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_start(commands: "Commands") -> None:
    """Add the parser of ``start``."""
    parser = commands.add_parser("start", help="measure what starting and stopping a trial takes, fresh and warm")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--state-dir", type=Path)
    parser.set_defaults(run=_start)


def _start(arguments: argparse.Namespace) -> None:
    measure_start(arguments.config, trials=arguments.trials, state_dir=arguments.state_dir)


def add_choose(commands: "Commands") -> None:
    """Add the parser of ``choose``."""
    parser = commands.add_parser(
        "choose", help="measure what one choice of the next trial takes, by length of the record"
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100, 300, 1000], help="lengths of the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_choose)


def _choose(arguments: argparse.Namespace) -> None:
    time_choices(arguments.config, arguments.trials, seed=arguments.seed)


def add_observe(commands: "Commands") -> None:
    """Add the parser of ``observe``."""
    parser = commands.add_parser("observe", help="what is seen of trainers that report nothing, and what that costs")
    parser.add_argument("styles", nargs="*", metavar="STYLE", help="e.g. fit loop-compiled torch (default: all)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the frameworks")
    parser.add_argument("--pairs", type=int, default=5, help="of trainings, for the cost of a step (default: 5)")
    parser.add_argument("--steps", type=int, default=200, help="in a block, of which a training has 20 (default: 200)")
    parser.set_defaults(run=_observe)


def _observe(arguments: argparse.Namespace) -> None:
    benchmark_observer(python=arguments.python, styles=arguments.styles, pairs=arguments.pairs, steps=arguments.steps)


def add_collector(commands: "Commands") -> None:
    """Add the parser of ``collector``."""
    parser = commands.add_parser("collector", help="measure what the GPU collector costs, itself and a training")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is watched (default: 60)")
    parser.add_argument("--config", type=Path, help="train with this config, with the collector and without in turn")
    parser.add_argument("--pairs", type=int, default=10, help="trainings of each kind (default: 10)")
    parser.add_argument("--train", type=float, default=20.0, help="seconds of each that count (default: 20)")
    parser.add_argument("--state-dir", type=Path)
    parser.set_defaults(run=_collector)


def _collector(arguments: argparse.Namespace) -> None:
    print(
        measure_collector(
            seconds=arguments.seconds,
            config=arguments.config,
            pairs=arguments.pairs,
            train_s=arguments.train,
            state_dir=arguments.state_dir,
        )
    )


def add_monitor(commands: "Commands") -> None:
    """Add the parser of ``monitor``."""
    parser = commands.add_parser("monitor", help="measure what `autotune monitor` costs")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is watched (default: 60)")
    parser.set_defaults(run=lambda arguments: print(measure_monitor(seconds=arguments.seconds)))


def add_storage(commands: "Commands") -> None:
    """Add the parser of ``storage``."""
    parser = commands.add_parser("storage", help="measure what the record of a study costs, by storage")
    parser.add_argument("--trials", type=int, default=1000, help="of a large study (default: 1000)")
    parser.add_argument(
        "--storage",
        nargs="+",
        metavar="ADDRESS",
        help="e.g. sqlite:studies.db (default: a journal and SQLite in a temporary folder, and what AUTOTUNE_STORAGE "
        "says). What is written there is deleted in the end.",
    )
    parser.set_defaults(run=_storage)


def _storage(arguments: argparse.Namespace) -> None:
    said = [SaidAddress(text=text, where="--storage", folder=Path.cwd()) for text in arguments.storage or ()]
    if by_environment := said_by_environment(os.environ, Path.cwd()):
        said.append(by_environment)
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder:
        addresses = [] if arguments.storage else temporary_addresses(Path(folder))
        print(measure_storages([*addresses, *map(parse_address, said)], trials=arguments.trials))
