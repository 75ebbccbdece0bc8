"""Command line of the benchmarks: ``python -m scripts.bench grid|search|start|...``."""

import argparse
import sys

from autotune.errors import AutotuneError
from scripts.bench import (
    answers,
    confirmation,
    cycles,
    drift,
    grid,
    loaders,
    machines,
    oscillation_verdicts,
    promises,
    search,
    stalls,
    two_devices,
    windows,
)
from scripts.bench.coded import benchmark as code
from scripts.bench.overhead import choices, distance, gpu_watching, observer, start, storage
from scripts.bench.simulation import calibration
from scripts.bench.staged import benchmark as staged
from scripts.bench.tables import benchmark as tables
from scripts.bench.tables import cliffs, published


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
    grid.add_grid,
    start.add_start,
    choices.add_choose,
    search.add_search,
    tables.add_tables,
    cliffs.add_cliffs,
    published.add_published,
    promises.add_promises,
    calibration.add_calibrate,
    confirmation.add_confirmation,
    oscillation_verdicts.add_oscillation,
    observer.add_observe,
    gpu_watching.add_collector,
    gpu_watching.add_monitor,
    machines.add_machines,
    storage.add_storage,
    distance.add_distance,
    drift.add_drift,
    windows.add_windows,
    cycles.add_cycles,
    stalls.add_stalls,
    code.add_code,
    staged.add_causes,
    two_devices.add_devices,
    loaders.add_loaders,
    answers.add_answers,
)


if __name__ == "__main__":
    sys.exit(main())
