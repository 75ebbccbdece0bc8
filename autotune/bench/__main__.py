"""``python -m autotune.bench grid``: the table of benchmarks."""

import argparse
import sys
from pathlib import Path

from autotune.bench.grid import measure_grid, parse_axis
from autotune.errors import AutotuneError


def main() -> int:
    """Runs one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m autotune.bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    grid = commands.add_parser("grid", help="measure every combination of some values, in random order")
    grid.add_argument("--config", type=Path, required=True)
    grid.add_argument("--repeats", type=int, default=2, help="runs of each point (default: 2)")
    grid.add_argument("--seed", type=int, default=0)
    grid.add_argument("--state-dir", type=Path)
    grid.add_argument("--out", type=Path, help="where the raw numbers go, as JSON lines")
    grid.add_argument("axes", nargs="+", metavar="KEY=V1,V2", help="e.g. data.batch_size=8,32; data.cache=none,memory")
    arguments = parser.parse_args()
    try:
        measure_grid(
            arguments.config,
            dict(parse_axis(axis) for axis in arguments.axes),
            repeats=arguments.repeats,
            seed=arguments.seed,
            state_dir=arguments.state_dir,
            out=arguments.out,
        )
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
