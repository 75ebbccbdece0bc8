"""Command line of the benchmarks: ``python -m scripts.bench grid|search|start|...``."""

import argparse
import sys

from autotune.errors import AutotuneError
from scripts.bench.command_line import measurements, overheads, searches


def main() -> int:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for add in _BENCHMARKS:
        add(commands)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


_BENCHMARKS = (
    measurements.add_grid,
    overheads.add_start,
    overheads.add_choose,
    searches.add_search,
    searches.add_tables,
    searches.add_promises,
    searches.add_calibrate,
    searches.add_confirmation,
    measurements.add_oscillation,
    overheads.add_observe,
    overheads.add_collector,
    overheads.add_monitor,
    overheads.add_storage,
    measurements.add_drift,
)


if __name__ == "__main__":
    sys.exit(main())
