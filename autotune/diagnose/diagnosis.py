"""Diagnosis from its first check to its verdict."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.clock import Clock
from autotune.diagnose.findings import Diagnosis
from autotune.diagnose.measured.diagnoser import Diagnoser
from autotune.diagnose.static.all_checks import static_checks
from autotune.diagnose.verdict import static_verdict, verdict_of
from autotune.events import Event
from autotune.measure.cpu_load import BusyCpu
from autotune.problem.problem import Problem
from autotune.process.launch import Runner
from autotune.search.open import SearchOptions, open_parts


@dataclass(frozen=True, kw_only=True)
class DiagnosisOptions:
    """Options of a diagnosis.

    Attributes:
        budget_s: The wall for everything, in seconds.
        started_s: When the process started, on the monotonic clock; the budget counts from there.
        allow_busy_gpu: Whether to make trials although somebody else is on the GPU.
    """

    budget_s: float
    started_s: float
    allow_busy_gpu: bool = False


def diagnose_static(problem: Problem | None, clock: Clock) -> Diagnosis:
    """Diagnose without a single trial: this machine and its installation, and where there is one, the config.

    Args:
        problem: The config and the command; None for the machine alone.
        clock: The machine's clock.
    """
    results = static_checks(problem, clock)
    return Diagnosis(verdict=static_verdict(results), results=results)


def diagnose(
    problem: Problem,
    options: DiagnosisOptions,
    clock: Clock,
    on_event: Callable[[Event], None],
    *,
    runner: Runner | None = None,
    busy_s: Callable[[], float | None] | None = None,
) -> Diagnosis:
    """Diagnose a training: static checks, then short trials of it.

    Args:
        problem: The config and the command; runnable.
        options: Budget and the like.
        clock: The machine's clock.
        on_event: Told everything that happens.
        runner: Makes the trials; None for real ones.
        busy_s: Returns the CPU time of all processes; None for this machine's.

    Raises:
        AutotuneError: Trials cannot be made: the record is held by a search, a GPU is busy, and the like.
    """
    cpu = BusyCpu()
    search = SearchOptions(
        budget_s=options.budget_s,
        started_s=options.started_s,
        allow_busy_gpu=options.allow_busy_gpu,
        warm_start=False,
    )
    with open_parts(problem, search, clock, on_event, runner=runner) as opened:
        static = static_checks(problem, clock, is_run=True)
        diagnoser = Diagnoser(opened.parts, opened.consumers, busy_s=busy_s or cpu.busy_s, cores=cpu.cores)
        measured = diagnoser.run()
    results = (*static, *measured.results)
    return Diagnosis(verdict=verdict_of(measured.results, measured.why_not_seen, static), results=results)
