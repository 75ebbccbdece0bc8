"""Benchmark of our search against other tuners, on simulated trainers whose best config is known.

Every finished scenario is a line of ``results.jsonl``, so that the same command resumes after an interruption.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from autotune import __version__
from autotune.errors import AutotuneError
from scripts.bench.peers.anytime_curve import HeadToHead, NullTrial
from scripts.bench.peers.head_to_head import hold_head_to_head, hold_null_trial
from scripts.bench.peers.plot import plot_regrets
from scripts.bench.peers.tables import report
from scripts.bench.resumable import in_processes, kept_lines, work_folder

FORMAT = 3
"""Version of the lines of ``results.jsonl``."""

REPORT_SEEDS = range(1000, 1200)
"""Scenarios reserved for reports: the search is developed on those below 100."""

REPORT_NULLS = 2000


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Settings of one benchmark.

    Attributes:
        seeds: The scenarios.
        nulls: Number of searches with nothing to find.
        budgets_s: Budgets of our search; the other methods get the largest.
        jobs: Number of processes.
        out: Folder of the results; an existing one is resumed.
    """

    seeds: range
    nulls: int
    budgets_s: tuple[float, ...]
    jobs: int
    out: Path


def benchmark_search(benchmark: Benchmark) -> None:
    """Run the missing scenarios, print the tables, and plot the regrets.

    Raises:
        AutotuneError: The folder holds results of another benchmark.
    """
    benchmark.out.mkdir(parents=True, exist_ok=True)
    results = benchmark.out / "results.jsonl"
    comparisons, nulls = _read(results, benchmark.budgets_s)
    missing: list[tuple[str, int]] = [("contest", seed) for seed in benchmark.seeds if seed not in comparisons]
    null_seeds = range(benchmark.seeds.start, benchmark.seeds.start + benchmark.nulls)
    missing += [("null", seed) for seed in null_seeds if seed not in nulls]
    with results.open("a", encoding="utf-8") as file:
        run = partial(_task, budgets_s=benchmark.budgets_s)
        for number, done in enumerate(in_processes(run, missing, benchmark.jobs), start=1):
            kind = "contest" if isinstance(done, HeadToHead) else "null"
            file.write(_line(done, benchmark.budgets_s))
            file.flush()
            if isinstance(done, HeadToHead):
                comparisons[done.seed] = done
            else:
                nulls[done.seed] = done
            print(f"{number} of {len(missing)}: {kind} {done.seed}, {done.cpu_s:.1f} s of CPU", file=sys.stderr)
    some = [comparisons[seed] for seed in benchmark.seeds]
    text = report(some, [nulls[seed] for seed in null_seeds])
    print(text)
    (benchmark.out / "tables.md").write_text(text, encoding="utf-8")
    plot_regrets(some, benchmark.out / "regret.png")


def _task(task: tuple[str, int], budgets_s: Sequence[float]) -> HeadToHead | NullTrial:
    kind, seed = task
    with work_folder() as folder:
        return hold_head_to_head(seed, budgets_s, folder) if kind == "contest" else hold_null_trial(seed, folder)


def _line(done: HeadToHead | NullTrial, budgets_s: Sequence[float]) -> str:
    head: dict[str, Any] = {"format": FORMAT, "autotune": __version__, "budgets_s": budgets_s}
    if isinstance(done, HeadToHead):
        head["contest"] = msgspec.to_builtins(done, str_keys=True)
    else:
        head["null"] = msgspec.to_builtins(done, str_keys=True)
    return json.dumps(head) + "\n"


def _read(results: Path, budgets_s: Sequence[float]) -> tuple[dict[int, HeadToHead], dict[int, NullTrial]]:
    """Read the results of an earlier, interrupted benchmark; a torn last line is cut off.

    Raises:
        AutotuneError: They belong to another benchmark.
    """
    comparisons: dict[int, HeadToHead] = {}
    nulls: dict[int, NullTrial] = {}
    for number, line in enumerate(kept_lines(results), start=1):
        entry = json.loads(line)
        head = (entry["format"], entry["autotune"], tuple(entry["budgets_s"]))
        if head != (FORMAT, __version__, tuple(budgets_s)):
            raise AutotuneError(
                "these are results of another benchmark: another version, or other budgets",
                where=f"{results}:{number}",
                remedy="Choose another folder with --out, or delete that one.",
            )
        if "contest" in entry:
            head_to_head = msgspec.convert(entry["contest"], HeadToHead, str_keys=True)
            comparisons[head_to_head.seed] = head_to_head
        else:
            null = msgspec.convert(entry["null"], NullTrial, str_keys=True)
            nulls[null.seed] = null
    return comparisons, nulls
