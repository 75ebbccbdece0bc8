"""Benchmark of verdicts: diagnoses cases with a known cause, and compares. Read `benchmark_causes` first."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import SystemClock
from autotune.errors import AutotuneError, ConfigError
from autotune.measure.host import BusyCpu
from scripts.bench.causes.cases import Case, Outcome
from scripts.bench.causes.confusion import report_of
from scripts.bench.causes.foreign_load import CALM_CORES, ForeignLoad
from scripts.bench.causes.kept_outcomes import keep_outcome, read_outcomes
from scripts.bench.causes.real_cases import real_cases
from scripts.bench.causes.simulated_cases import simulated_cases


@dataclass(frozen=True, kw_only=True)
class CausesBenchmark:
    """What the benchmark is asked for.

    Attributes:
        real: Whether real trainings are run.
        simulated: Whether simulated ones are.
        only: Names of the cases, or parts of names; empty for all.
        budget_s: Budget of each diagnosis of a real training.
        calm_s: Longest time to wait before a real case until others leave the machine alone.
        record: File of the outcomes, which is gone on with; None for none.
        keep: Folder for what each diagnosis of a real training found; None for none.
        command: The command, as the report names it.
        with_torch: Interpreter with PyTorch; None leaves out what needs it.
    """

    real: bool
    simulated: bool
    only: Sequence[str]
    budget_s: float
    calm_s: float
    record: Path | None
    keep: Path | None
    command: str
    with_torch: str | None = None


def benchmark_causes(asked: CausesBenchmark) -> str:
    """Run the cases one after the other, each with a line on stderr; return the report.

    A real case beside which others kept the machine busy does not count: whoever asks again, has it run again.

    Raises:
        ConfigError: No case has such a name.
    """
    cases = _chosen(asked)
    outcomes = {one.case.name: one for one in read_outcomes(asked.record, cases)} if asked.record else {}
    why_not = {case.name: case.why_not for case in cases if case.why_not}
    load = ForeignLoad(SystemClock(), BusyCpu().busy_s)
    for case in cases:
        if case.name in outcomes or case.why_not:
            continue
        if case.is_real:
            load.wait_for_calm(asked.calm_s)
        load.begin()
        outcome = _run(case, asked.budget_s)
        foreign = load.cores() if case.is_real else 0.0
        told = f"{case.name} ({case.cause}): {outcome.sentence}"
        if foreign > CALM_CORES:
            why_not[case.name] = f"others kept {foreign:.1f} cores busy"
            print(f"disturbed by {foreign:.1f} cores  {told}", file=sys.stderr, flush=True)
            continue
        outcomes[case.name] = outcome
        print(f"{'right' if outcome.is_right else 'WRONG'}  {told}", file=sys.stderr, flush=True)
        if asked.record is not None:
            keep_outcome(asked.record, outcome)
    return report_of([outcomes[case.name] for case in cases if case.name in outcomes], why_not, command=asked.command)


def _chosen(asked: CausesBenchmark) -> list[Case]:
    cases = [
        *(simulated_cases() if asked.simulated else ()),
        *(real_cases(asked.keep, asked.with_torch) if asked.real else ()),
    ]
    chosen = [case for case in cases if not asked.only or any(part in case.name for part in asked.only)]
    if not chosen:
        raise ConfigError("no case has such a name", where="--only", remedy=", ".join(case.name for case in cases))
    return chosen


def _run(case: Case, budget_s: float) -> Outcome:
    try:
        verdict = case.run(budget_s)
    except AutotuneError as error:
        return Outcome(case=case, limit=None, sentence=str(error))
    return Outcome(case=case, limit=verdict.limit, sentence=verdict.sentence)
