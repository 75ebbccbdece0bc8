"""Command lines of these benchmarks; what they measure is imported when it is run."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_text(commands: "Commands") -> None:
    """Add the parser of ``text``."""
    parser = commands.add_parser("text", help="prepare the texts of a data set: here, in processes, from the cache")
    parser.add_argument(
        "listing", type=Path, nargs="?", metavar="FILE", help="metadata.csv like LJSpeech's (default: made-up lines)"
    )
    parser.add_argument("--lines", type=int, default=13_100, help="varied from those (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--turns", type=int, default=5, help="of each way (default: 5)")
    parser.set_defaults(run=_text)


def _text(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the trainer that ships.
    from scripts.bench.dataset.text_preparation import TextBenchmark, benchmark_texts

    benchmark = TextBenchmark(
        listing=arguments.listing, lines=arguments.lines, workers=arguments.workers, turns=arguments.turns
    )
    print(benchmark_texts(benchmark), end="")


def add_dataset(commands: "Commands") -> None:
    """Add the parser of ``dataset``."""
    parser = commands.add_parser(
        "dataset", help="measure the pipeline's functions, where they help and where they hurt"
    )
    parser.add_argument("--turns", type=int, default=5, help="without and with (default: 5)")
    parser.set_defaults(run=_dataset)


def _dataset(arguments: argparse.Namespace) -> None:
    # Here, because of the seconds that importing TensorFlow takes.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from scripts.bench.dataset.pipeline_functions import benchmark_pipeline_functions

    print(benchmark_pipeline_functions(turns=arguments.turns), end="")
