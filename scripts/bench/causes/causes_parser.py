"""Command line of the benchmark of causes; what it needs is imported when it is run."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.clock import parse_duration_s

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_causes(commands: "Commands") -> None:
    """Add the parser of ``causes``."""
    parser = commands.add_parser("causes", help="diagnose trainings with one known cause of slowness, and compare")
    parser.add_argument("--real", action="store_true", help="real trainings only, of about a minute each")
    parser.add_argument("--simulated", action="store_true", help="simulated trainings only")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="or a part of it; may be repeated")
    parser.add_argument("--budget", type=parse_duration_s, default="60s", help="of a real diagnosis (default: 60s)")
    parser.add_argument(
        "--calm", type=parse_duration_s, default="60s", help="longest wait for a machine without others (default: 60s)"
    )
    parser.add_argument("--record", type=Path, metavar="FILE.jsonl", help="outcomes as they come; gone on with")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what each diagnosis of a real training found")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="where the report goes (default: the terminal)")
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter with PyTorch; without it that is left out")
    parser.set_defaults(run=_causes)


def _causes(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of diagnoses.
    from scripts.bench.causes.benchmark_causes import CausesBenchmark, benchmark_causes

    report = benchmark_causes(
        CausesBenchmark(
            real=arguments.real or not arguments.simulated,
            simulated=arguments.simulated or not arguments.real,
            only=arguments.only,
            budget_s=arguments.budget,
            calm_s=arguments.calm,
            record=arguments.record,
            keep=arguments.keep,
            command=shlex.join(["python", "-m", "scripts.bench", *sys.argv[1:]]),
            with_torch=arguments.torch,
        )
    )
    if arguments.out is None:
        print(report, end="")
    else:
        arguments.out.write_text(report)
