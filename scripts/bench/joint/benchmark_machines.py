"""Benchmark of several machines on one study: time, false wins, and a machine on which every trial fails.

Every finished search is a line of ``machines.jsonl``, so that the same command resumes after an interruption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune import __version__
from scripts.bench.joint.machines_report import machines_report
from scripts.bench.joint.made_searches import Ground, JointPiece, MadeSearch, make_search
from scripts.bench.joint.two_machine_confirmations import report_on_two_machines
from scripts.bench.peers.head_to_head import NULL_BUDGET_S
from scripts.bench.resumable import make_missing

FORMAT = 1
"""Version of the lines of ``machines.jsonl``."""

_FIRST_SCENARIO = 1000  # as other reports: the search is developed on those below 100
_MACHINES_OF_NULLS = (2, 4)
_MACHINES_BESIDE = 4  # of the searches with a black hole, that one included


@dataclass(frozen=True, kw_only=True)
class MachinesBenchmark:
    """Settings of one benchmark.

    Attributes:
        machines: Numbers of machines.
        workloads: Number of scenarios that are searched with each number of machines.
        nulls: Number of searches with nothing to find, of two machines, and of four.
        black_holes: Number of searches of four machines, one of them a black hole.
        confirmations: Number of confirmations on two machines, under each noise.
        budget_s: Budget of the searches.
        jobs: Number of processes.
        out: Folder of the results; an existing one is gone on with.
    """

    machines: Sequence[int]
    workloads: int
    nulls: int
    black_holes: int
    confirmations: int
    budget_s: float
    jobs: int
    out: Path


def benchmark_machines(benchmark: MachinesBenchmark) -> str:
    """Make the missing searches.

    Returns:
        The report, as Markdown; it is written there, too.

    Raises:
        ConfigError: An earlier result cannot be used.
    """
    searches = make_missing(
        make_search,
        list(_pieces(benchmark)),
        path=benchmark.out / "machines.jsonl",
        head={"format": FORMAT, "autotune": __version__},
        kind=MadeSearch,
        jobs=benchmark.jobs,
        describe=lambda search: f"{search.piece}, {search.cpu_s:.1f} s of CPU",
    )
    report = machines_report(searches)
    if benchmark.confirmations:
        report += f"\n## Confirmations on two machines, {benchmark.confirmations} each\n\n"
        number, jobs = benchmark.confirmations, benchmark.jobs
        report += report_on_two_machines(confirmations=number, seed=0, jobs=jobs) + "\n"
    (benchmark.out / "machines.md").write_text(report, encoding="utf-8")
    return report


def _pieces(benchmark: MachinesBenchmark) -> Iterator[JointPiece]:
    """Yield all pieces, those of all numbers of machines in turn: an interrupted benchmark has some of everything."""
    for seed in range(_FIRST_SCENARIO, _FIRST_SCENARIO + benchmark.workloads):
        for machines in benchmark.machines:
            yield JointPiece(ground=Ground.FINDS, seed=seed, machines=machines, budget_s=benchmark.budget_s)
    for seed in range(_FIRST_SCENARIO, _FIRST_SCENARIO + benchmark.black_holes):
        yield JointPiece(ground=Ground.BLACK_HOLE, seed=seed, machines=_MACHINES_BESIDE, budget_s=benchmark.budget_s)
    for seed in range(_FIRST_SCENARIO, _FIRST_SCENARIO + benchmark.nulls):
        for machines in _MACHINES_OF_NULLS:
            yield JointPiece(ground=Ground.NULL, seed=seed, machines=machines, budget_s=NULL_BUDGET_S)
