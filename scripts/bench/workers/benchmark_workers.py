"""Benchmark of worker processes on one study, in a real storage: throughput, and rounds in which workers go."""

import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock, SystemClock
from autotune.errors import ConfigError
from autotune.study.record import Study
from autotune.study.storage.address import SaidAddress, StorageAddress, address_of, said_by_environment
from scripts.bench.markdown import markdown_table
from scripts.bench.overhead.study_filling import clear
from scripts.bench.workers.disturbed_round import LEAST_WORKERS, DisturbedRound, disturbed_round
from scripts.bench.workers.kept_trials import KeptTrials
from scripts.bench.workers.throughput import Throughput, measure_throughput
from scripts.bench.workers.waiting_runner import TRIAL_S
from scripts.bench.workers.worker_process import WorkerJob

_BUDGET_S = 3600.0  # nobody comes to its end

_KEPT_HEADS = (
    "announced",
    "missing",
    "waiting",
    "repeated",
    "unannounced",
    "of one UUID",
    "of one point",
    "interrupted",
    "running",
    "late",
)


@dataclass(frozen=True, kw_only=True)
class WorkersBenchmark:
    """Settings of one benchmark.

    Attributes:
        storage: Where the studies are kept, as typed; None for what the environment says, else a journal in a
            temporary folder.
        workers: Number of workers.
        trials: Trials that are counted, of each worker on average, for the throughput; 0 leaves it out.
        rounds: Number of rounds in which workers go.
        frozen_s: Time for which one is frozen in each.
    """

    storage: str | None
    workers: int
    trials: int
    rounds: int
    frozen_s: float

    def __post_init__(self) -> None:
        if self.rounds and self.workers < LEAST_WORKERS:
            raise ConfigError(
                f"{self.workers} workers are too few for rounds in which three of them go",
                where="--workers",
                remedy=f"Take {LEAST_WORKERS} or more, or leave the rounds out: --rounds 0.",
            )


def benchmark_workers(benchmark: WorkersBenchmark) -> str:
    """Measure, and delete the studies.

    Returns:
        The report, as Markdown.

    Raises:
        AutotuneError: The storage cannot be used, or the workers did not work.
    """
    clock, parts = SystemClock(), []
    _parsed(benchmark.storage)  # before anything is started
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as name:
        if benchmark.trials:
            measured = [
                _throughput(clock, benchmark, workers, Path(name)) for workers in sorted({1, benchmark.workers})
            ]
            parts += [f"## Trials of {TRIAL_S:g} s that only wait", throughput_table(measured)]
        if benchmark.rounds:
            rounds = [_round(clock, benchmark, Path(name) / f"round-{number}") for number in range(benchmark.rounds)]
            parts += [
                f"## {benchmark.workers} workers: one killed, one frozen for {benchmark.frozen_s:g} s, one told to "
                "leave",
                rounds_table(rounds),
                f"Nothing lost, nothing twice: {sum(one.kept.is_whole for one in rounds)} of {len(rounds)} rounds.",
            ]
    return "\n\n".join(parts) + "\n"


def throughput_table(measured: Sequence[Throughput]) -> str:
    """Return a table with a line for each number of workers; the first is compared with."""
    rows = [
        [
            str(one.workers),
            str(one.trials),
            f"{one.a_minute:.0f}",
            f"{one.a_minute / measured[0].a_minute:.2f}",
            one.between_cell,
            "-" if one.commits is None else f"{one.commits / one.trials:.1f}",
            str(one.kept.missing),
            str(one.kept.same_uuid),
            str(one.kept.same_point),
        ]
        for one in measured
    ]
    heads = ["workers", "trials", "a minute", "against one", "between trials, ms", "commits per trial"]
    return markdown_table([*heads, "missing", "of one UUID", "of one point"], rows)


def rounds_table(rounds: Sequence[DisturbedRound]) -> str:
    """Return a table with a line for each round."""
    rows = [
        [
            str(number),
            *_kept_cells(one.kept),
            str(one.went_on),
            ", ".join("none" if code is None else str(code) for code in one.codes),
        ]
        for number, one in enumerate(rounds, start=1)
    ]
    return markdown_table(["round", *_KEPT_HEADS, "of the frozen one, thereafter", "exit codes"], rows)


def _kept_cells(kept: KeptTrials) -> list[str]:
    return [
        str(number)
        for number in (
            kept.announced,
            kept.missing,
            kept.waiting,
            kept.repeated,
            kept.unannounced,
            kept.same_uuid,
            kept.same_point,
            kept.interrupted,
            kept.running,
            kept.late,
        )
    ]


def _throughput(clock: Clock, benchmark: WorkersBenchmark, workers: int, folder: Path) -> Throughput:
    print(f"{workers} workers", file=sys.stderr)
    jobs, judge = _jobs(benchmark, workers, folder / f"workers-{workers}")
    try:
        return measure_throughput(clock, jobs, judge, trials=benchmark.trials)
    finally:
        _clear(judge)


def _round(clock: Clock, benchmark: WorkersBenchmark, folder: Path) -> DisturbedRound:
    jobs, judge = _jobs(benchmark, benchmark.workers, folder)
    try:
        one = disturbed_round(clock, jobs, judge, frozen_s=benchmark.frozen_s)
    finally:
        _clear(judge)
    print(f"{folder.name}: {one}", file=sys.stderr)
    return one


def _jobs(benchmark: WorkersBenchmark, workers: int, folder: Path) -> tuple[list[WorkerJob], WorkerJob]:
    """Return what each worker is to do in a study of their own, and the job that opens it to read it."""
    study, storage = uuid.uuid4().hex, _shared_storage(benchmark.storage, folder)
    jobs = []
    for number in range(workers + 1):
        own = folder / str(number)
        own.mkdir(parents=True)
        jobs.append(WorkerJob(number=number, study=study, storage=storage, budget_s=_BUDGET_S, folder=own))
    judge = jobs.pop()
    problem = judge.problem()
    problem.state.create()
    Study(problem.study, problem.storage).close()  # workers come to a study that is there
    return jobs, judge


def _shared_storage(typed: str | None, folder: Path) -> str | None:
    """Return the storage as workers in other folders would type it; None for what the environment says."""
    address = _parsed(typed)
    if address is None:
        return f"journal:{folder / 'studies'}"
    return typed if address.path is None else address.shown


def _parsed(typed: str | None) -> StorageAddress | None:
    said = SaidAddress(text=typed, where="--storage", folder=Path.cwd()) if typed else None
    return address_of(said, said_by_environment(os.environ, Path.cwd()))


def _clear(judge: WorkerJob) -> None:
    problem = judge.problem()
    clear(problem.storage, problem.study)
