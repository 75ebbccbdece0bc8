"""Command line of the benchmarks: ``python -m autotune.bench grid|search|start|...``."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.bench.causes.causes_parser import add_causes
from autotune.bench.confirmation import benchmark_confirmation
from autotune.bench.dataset.parsers import add_dataset, add_text
from autotune.bench.diagnosed.diagnosed_parser import add_predicted_gains, add_saved_time
from autotune.bench.drift.benchmark_drift import benchmark_drift
from autotune.bench.grid import measure_grid, parse_axis
from autotune.bench.grounds import Grounds
from autotune.bench.landscapes import benchmark_landscapes
from autotune.bench.oscillation_verdicts import benchmark_oscillation
from autotune.bench.overhead.collector_cost import measure_collector
from autotune.bench.overhead.monitor_cost import measure_monitor
from autotune.bench.overhead.observer import benchmark_observer
from autotune.bench.overhead.proposals import time_choices
from autotune.bench.overhead.start import measure_start
from autotune.bench.overhead.storage_cost import measure_storages, temporary_addresses
from autotune.bench.races.races_parser import add_races
from autotune.bench.simulation.calibration import calibrate
from autotune.durations import parse_duration_s
from autotune.errors import AutotuneError
from autotune.study.storage.address import SaidAddress, parse_address, said_by_environment

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main() -> int:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m autotune.bench", description=__doc__)
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


def _add_grid(commands: "Commands") -> None:
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


def _add_start(commands: "Commands") -> None:
    parser = commands.add_parser("start", help="measure what starting and stopping a trial takes, fresh and warm")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--state-dir", type=Path)
    parser.set_defaults(run=_start)


def _start(arguments: argparse.Namespace) -> None:
    measure_start(arguments.config, trials=arguments.trials, state_dir=arguments.state_dir)


def _add_choose(commands: "Commands") -> None:
    parser = commands.add_parser(
        "choose", help="measure what one choice of the next trial takes, by length of the record"
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100, 300, 1000], help="lengths of the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_choose)


def _choose(arguments: argparse.Namespace) -> None:
    time_choices(arguments.config, arguments.trials, seed=arguments.seed)


def _add_search(commands: "Commands") -> None:
    parser = commands.add_parser("search", help="compare the search with other ways to tune, on simulated trainers")
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="0-31", help="scenarios (default: 0-99)")
    parser.add_argument("--aa", type=int, default=0, metavar="N", help="searches with nothing to find (default: 0)")
    parser.add_argument("--report", action="store_true", help="the scenarios that are kept for reports, and 2,000 A/A")
    parser.add_argument("--budgets", type=_budgets_s, default="5m,30m", help="default: %(default)s")
    _add_pieces(parser, out="bench-search")
    parser.set_defaults(run=_search)


def _add_pieces(parser: argparse.ArgumentParser, *, out: str) -> None:
    """Add the options of a benchmark that is made in pieces, see `autotune.bench.resumable`."""
    parser.add_argument("--jobs", type=int, default=1, help="processes at work (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the results; gone on with")


def _search(arguments: argparse.Namespace) -> None:
    # Here, because it needs matplotlib, which other benchmarks do without.
    from autotune.bench.peers.benchmark import REPORT_NULLS, REPORT_SEEDS, Benchmark, benchmark_search

    benchmark_search(
        Benchmark(
            seeds=REPORT_SEEDS if arguments.report else arguments.seeds,
            nulls=REPORT_NULLS if arguments.report else arguments.aa,
            budgets_s=arguments.budgets,
            jobs=arguments.jobs,
            out=arguments.out,
        )
    )


def _add_tables(commands: "Commands") -> None:
    parser = commands.add_parser("tables", help="compare the tuner with its peers on tables of measured systems")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the tables, NAME.csv.gz")
    parser.add_argument("--seeds", type=_seeds, default=range(10), metavar="0-9", help="default: 0-9")
    parser.add_argument("--trials", type=_numbers, default=(30, 60, 120), help="default: 30,60,120")
    parser.add_argument("--method", action="append", default=[], help="of these methods only; may be repeated")
    parser.add_argument("--noise", action="append", default=[], help="under these noises only; may be repeated")
    _add_pieces(parser, out="bench-tables")
    parser.set_defaults(run=_tables)


def _tables(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.tables.benchmark_tables import TablesBenchmark, benchmark_tables

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


def _add_assumptions(commands: "Commands") -> None:
    parser = commands.add_parser(
        "assumptions", help="the search on simulated trainers with one assumption changed, beside TPE"
    )
    parser.add_argument("--seeds", type=_seeds, default=range(1000, 1048), metavar="0-31", help="default: 1000-1047")
    parser.add_argument("--budgets", type=_budgets_s, default="5m,30m", help="default: %(default)s")
    _add_pieces(parser, out="bench-search")
    parser.set_defaults(run=_assumptions)


def _assumptions(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.peers.changed_assumptions import benchmark_assumptions

    print(
        benchmark_assumptions(
            seeds=arguments.seeds, budgets_s=arguments.budgets, jobs=arguments.jobs, out=arguments.out
        )
    )


def _add_siblings(commands: "Commands") -> None:
    parser = commands.add_parser("siblings", help="the search on a machine whose sibling has searched already")
    parser.add_argument("--seeds", type=_seeds, default=range(1000, 1100), metavar="0-31", help="default: 1000-1099")
    parser.add_argument("--budget", type=parse_duration_s, default=600.0, help="of each search (default: 10m)")
    _add_pieces(parser, out="bench-siblings")
    parser.set_defaults(run=_siblings)


def _siblings(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.siblings import benchmark_siblings

    print(
        benchmark_siblings(seeds=arguments.seeds, budget_s=arguments.budget, jobs=arguments.jobs, out=arguments.out),
        end="",
    )


def _add_placement(commands: "Commands") -> None:
    parser = commands.add_parser("placement", help="how well searches place data and model on two GPUs")
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="0-31", help="default: 0-99")
    parser.add_argument("--budget", type=parse_duration_s, default=600.0, help="of each search (default: 10m)")
    _add_pieces(parser, out="bench-placement")
    parser.set_defaults(run=_placement)


def _placement(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.placement import benchmark_placement

    print(
        benchmark_placement(seeds=arguments.seeds, budget_s=arguments.budget, jobs=arguments.jobs, out=arguments.out),
        end="",
    )


def _add_landscapes(commands: "Commands") -> None:
    parser = commands.add_parser(
        "landscapes", help="compare how rugged simulated trainers are with measured systems, by three statistics"
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="folder of measured tables, NAME.csv.gz")
    parser.add_argument("--seeds", type=_seeds, default=range(1000, 1048), metavar="0-31", help="default: 1000-1047")
    parser.set_defaults(run=_landscapes)


def _landscapes(arguments: argparse.Namespace) -> None:
    print(benchmark_landscapes(folder=arguments.folder, seeds=arguments.seeds))


def _add_promises(commands: "Commands") -> None:
    parser = commands.add_parser("promises", help="what a search promises to gain, beside what it truly gained")
    _add_grounds(parser)
    _add_pieces(parser, out="bench-promises")
    parser.set_defaults(run=_promises)


def _add_grounds(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark of searches on tables and on the simulator."""
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="folder of tables (default: the simulator alone)"
    )
    parser.add_argument("--seeds", type=_seeds, default=range(2), metavar="0-9", help="on tables (default: 0-1)")
    parser.add_argument(
        "--scenarios", type=_seeds, default=range(1000, 1024), metavar="0-31", help="default: 1000-1023"
    )


def _promises(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.promises.benchmark_promises import benchmark_promises

    print(benchmark_promises(_grounds(arguments)), end="")


def _grounds(arguments: argparse.Namespace) -> Grounds:
    return Grounds(
        folder=arguments.folder,
        seeds=arguments.seeds,
        scenarios=arguments.scenarios,
        jobs=arguments.jobs,
        out=arguments.out,
    )


def _add_ablation(commands: "Commands") -> None:
    parser = commands.add_parser("ablation", help="the search with one of its parts off, on tables and the simulator")
    _add_grounds(parser)
    _add_pieces(parser, out="bench-ablation")
    parser.set_defaults(run=_ablation)


def _ablation(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.ablation import benchmark_ablation

    print(benchmark_ablation(_grounds(arguments)), end="")


def _add_calibrate(commands: "Commands") -> None:
    parser = commands.add_parser(
        "calibrate", help="fit the simulated trainers to measured ones, and say how well they agree"
    )
    parser.set_defaults(run=lambda _arguments: calibrate())


def _add_confirmation(commands: "Commands") -> None:
    parser = commands.add_parser("confirmation", help="judge simulated confirmations, and compare with the truth")
    parser.add_argument("--searches", type=int, default=2000, help="under each noise (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_confirmation)


def _confirmation(arguments: argparse.Namespace) -> None:
    print(benchmark_confirmation(searches=arguments.searches, seed=arguments.seed), end="")


def _add_oscillation(commands: "Commands") -> None:
    parser = commands.add_parser("oscillation", help="judge simulated GPU utilization, and compare with the truth")
    parser.add_argument("--scenarios", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=_oscillation)


def _oscillation(arguments: argparse.Namespace) -> None:
    print(benchmark_oscillation(scenarios=arguments.scenarios, seed=arguments.seed), end="")


def _add_observe(commands: "Commands") -> None:
    parser = commands.add_parser("observe", help="what is seen of trainers that report nothing, and what that costs")
    parser.add_argument("styles", nargs="*", metavar="STYLE", help="e.g. fit loop-compiled torch (default: all)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the frameworks")
    parser.add_argument("--pairs", type=int, default=5, help="of trainings, for the cost of a step (default: 5)")
    parser.add_argument("--steps", type=int, default=200, help="in a block, of which a training has 20 (default: 200)")
    parser.set_defaults(run=_observe)


def _observe(arguments: argparse.Namespace) -> None:
    benchmark_observer(python=arguments.python, styles=arguments.styles, pairs=arguments.pairs, steps=arguments.steps)


def _add_collector(commands: "Commands") -> None:
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


def _add_monitor(commands: "Commands") -> None:
    parser = commands.add_parser("monitor", help="measure what `autotune monitor` costs")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is watched (default: 60)")
    parser.set_defaults(run=lambda arguments: print(measure_monitor(seconds=arguments.seconds)))


def _add_storage(commands: "Commands") -> None:
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


def _add_drift(commands: "Commands") -> None:
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


def _add_machines(commands: "Commands") -> None:
    parser = commands.add_parser("machines", help="several machines on one study, simulated in virtual time")
    parser.add_argument("--machines", type=_numbers, default=(1, 2, 4, 8), metavar="1,2,4,8", help="default: 1,2,4,8")
    parser.add_argument("--workloads", type=int, default=50, help="scenarios with something to find (default: 50)")
    parser.add_argument("--aa", type=int, default=200, help="searches with nothing to find (default: 200)")
    parser.add_argument("--black-holes", type=int, default=100, help="searches with a black hole (default: 100)")
    parser.add_argument("--confirmations", type=int, default=2000, help="under each noise (default: 2000)")
    parser.add_argument("--budget", type=parse_duration_s, default="10m", help="of each search (default: 10m)")
    _add_pieces(parser, out="bench-machines")
    parser.set_defaults(run=_machines)


def _machines(arguments: argparse.Namespace) -> None:
    # Here, because other benchmarks do without the imports of the peers.
    from autotune.bench.joint.benchmark_machines import MachinesBenchmark, benchmark_machines

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


def _add_workers(commands: "Commands") -> None:
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
    from autotune.bench.workers.benchmark_workers import WorkersBenchmark, benchmark_workers

    benchmark = WorkersBenchmark(
        storage=arguments.storage,
        workers=arguments.workers,
        trials=arguments.trials,
        rounds=arguments.rounds,
        frozen_s=arguments.frozen,
    )
    print(benchmark_workers(benchmark), end="")


def _add_two_devices(commands: "Commands") -> None:
    parser = commands.add_parser(
        "two-devices", help="measure the throughput of a pipeline over two devices against its bound"
    )
    parser.add_argument("--ratios", type=_ratios, default="0.2,0.5,0.8,1,1.25,2,5", help="f/s (default: %(default)s)")
    parser.add_argument("--buffers", type=_numbers, default=(1, 2, 4, 16), help="batches (default: 1,2,4,16)")
    parser.add_argument("--batches", type=int, default=200, help="to measure, of 20 ms and more (default: 200)")
    parser.add_argument("--variation", type=float, default=0.3, help="of the times of each stage (default: 0.3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("two-devices.png"), help="the picture")
    parser.set_defaults(run=_two_devices)


def _two_devices(arguments: argparse.Namespace) -> None:
    # Here, because it starts TensorFlow, and needs matplotlib.
    from autotune.bench.two_devices.throughput import benchmark_throughput

    benchmark_throughput(
        arguments.ratios,
        arguments.buffers,
        batches=arguments.batches,
        variation=arguments.variation,
        seed=arguments.seed,
        out=arguments.out,
    )


def _ratios(text: str) -> tuple[float, ...]:
    """Parse ``0.2,1,5``: numbers above 0."""
    ratios = tuple(sorted({float(ratio) for ratio in text.split(",")}))
    if ratios[0] <= 0.0:
        raise ValueError(f"{text!r} are no ratios of times")
    return ratios


def _seeds(text: str) -> range:
    """Parse ``0-31``, both ends included, or a single seed."""
    first, dash, last = text.partition("-")
    seeds = range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"{text!r} names no seeds")
    return seeds


def _numbers(text: str) -> tuple[int, ...]:
    """Parse ``30,60``: numbers above 0."""
    numbers = tuple(sorted({int(number) for number in text.split(",")}))
    if numbers[0] < 1:
        raise ValueError(f"{text!r} are no numbers of trials")
    return numbers


def _budgets_s(text: str) -> tuple[float, ...]:
    """Parse ``5m,30m``."""
    return tuple(sorted({parse_duration_s(budget) for budget in text.split(",")}))


_BENCHMARKS = (
    _add_grid,
    _add_start,
    _add_choose,
    _add_search,
    _add_tables,
    _add_assumptions,
    _add_siblings,
    _add_placement,
    _add_landscapes,
    _add_promises,
    _add_ablation,
    _add_calibrate,
    _add_confirmation,
    _add_oscillation,
    _add_observe,
    _add_collector,
    _add_monitor,
    _add_storage,
    _add_drift,
    _add_machines,
    _add_workers,
    _add_two_devices,
    add_text,
    add_dataset,
    add_causes,
    add_predicted_gains,
    add_saved_time,
    add_races,
)


if __name__ == "__main__":
    sys.exit(main())
