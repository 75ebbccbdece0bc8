"""Benchmark of what a diagnosis saves a search: time to within 5 % of the optimum, with and without."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from autotune.diagnose.measured import Diagnoser
from autotune.errors import AutotuneError
from autotune.search.parts import SearchParts
from autotune.search.schedule import Budget
from autotune.study.record import Study
from scripts.bench.markdown import markdown_table
from scripts.bench.peers.harness import Harness
from scripts.bench.simulation.scenarios import Scenario, scenario

WAYS = ("search alone", "diagnosis first")
"""Ways of a search: by itself, and after a diagnosis."""

Row = dict[str, float | str]
"""Outcome of one workload: its seed and family, and the time of each way in seconds."""

_DIAGNOSIS_S = 90.0


def benchmark_saved_time(*, seeds: int, budget_s: float, record: Path | None, command: str) -> str:
    """Search simulated workloads in each of the ways; return the report.

    The time counts from the start of the diagnosis. A search that does not come there counts as one that takes all
    of its budget.

    Args:
        seeds: Number of workloads; they cycle through the families.
        budget_s: Budget of each way, the diagnosis included.
        record: File of the outcomes, which is gone on with; None for none.
        command: The command, for the report.
    """
    known = {}
    if record is not None and record.exists():
        known = {row["seed"]: row for row in map(json.loads, record.read_text().splitlines())}
    rows = []
    for seed in range(seeds):
        row: Row = known.get(seed) or {
            "seed": seed,
            "family": scenario(seed).family,
            **{way: _close_s(scenario(seed), way, budget_s) for way in WAYS},
        }
        if record is not None and seed not in known:
            with record.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
    return f"`{command}`\n\n{_table(rows)}\n"


def _close_s(one: Scenario, way: str, budget_s: float) -> float:
    """Return the time from which the answer of a way is within 5 % of the best for good; the budget if it is not."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(one, budget_s, Path(folder) / "search", method="autotune")
        started_s = harness.clock.now_s()
        if way == "diagnosis first":
            _diagnose(harness, one)
        left_s = budget_s - (harness.clock.now_s() - started_s)
        budget = Budget(harness.clock, started_s=harness.clock.now_s(), budget_s=left_s)
        try:
            harness.search(budget, only_confirmed=False)
        except AutotuneError:
            return budget_s
        found_s = harness.curve(None).close_s()
    return budget_s if found_s is None else found_s


def _diagnose(harness: Harness, one: Scenario) -> None:
    study = Study(harness.problem.study, harness.problem.storage)
    try:
        parts = SearchParts(
            name="diagnosis",
            seed=one.seed,
            problem=harness.problem,
            study=study,
            runner=harness.runner,
            budget=Budget(harness.clock, started_s=harness.clock.now_s(), budget_s=_DIAGNOSIS_S),
            clock=harness.clock,
            instruments=harness.instruments,
        )
        Diagnoser(parts, (), busy_s=lambda: None, cores=float(one.machine.cpu_cores)).run()
    finally:
        study.close()


def _table(rows: Sequence[Row]) -> str:
    families = [*dict.fromkeys(str(row["family"]) for row in rows), "all"]
    shown = []
    for family in families:
        some = [row for row in rows if family in (row["family"], "all")]
        times = {way: [float(row[way]) for row in some] for way in WAYS}
        alone = times[WAYS[0]]
        ratios = [median(mine / theirs for mine, theirs in zip(times[way], alone, strict=True)) for way in WAYS[1:]]
        cells = [f"{median(times[way]):.0f} s" for way in WAYS]
        shown.append((family, str(len(some)), *cells, *(f"{ratio:.2f}" for ratio in ratios)))
    names = [f"{way}, over alone (median of pairs)" for way in WAYS[1:]]
    return markdown_table(("family", "workloads", *(f"{way}, median" for way in WAYS), *names), shown)
