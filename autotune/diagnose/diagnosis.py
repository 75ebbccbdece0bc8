"""Entry points of a diagnosis, static and measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.clock import Clock
from autotune.diagnose.code_checks import check_code
from autotune.diagnose.config_checks import check_configuration
from autotune.diagnose.diagnoser import Diagnoser, Measured
from autotune.diagnose.findings import CheckResult, Diagnosis, DiagnosisVerdict, Limit, Severity
from autotune.diagnose.machine_checks import (
    check_framework,
    check_graph,
    check_hardware,
    check_memory,
    check_native_loader,
    check_storage,
    query_framework,
)
from autotune.diagnose.shares import INPUT, time_shares
from autotune.diagnose.subject import Subject
from autotune.diagnose.verdict import static_verdict, verdict_of
from autotune.events import Event
from autotune.measure.host import BusyCpu
from autotune.options import SearchOptions
from autotune.search.open import Session, open_parts
from autotune.search.problem import Problem
from autotune.trial.instruments import Simulator


def diagnose_static(problem: Problem | None, clock: Clock) -> Diagnosis:
    """Diagnose without trials.

    Args:
        problem: Config and command; None checks only the machine and the installation.
    """
    results = static_checks(problem, clock)
    return Diagnosis(verdict=static_verdict(results), results=results)


def diagnose(
    problem: Problem,
    clock: Clock,
    on_event: Callable[[Event], None],
    *,
    budget_s: float,
    started_s: float,
    is_brief: bool = False,
    allow_busy_gpu: bool = False,
    verifies: bool = False,
    simulator: Simulator | None = None,
) -> Diagnosis:
    """Diagnose a training: static checks, then short trials.

    Args:
        problem: Config and command; runnable.
        started_s: Start of the process and of the budget, on the monotonic clock.
        is_brief: Whether to take less than the budget for a trainer that starts quickly.
        verifies: Whether to check only that the step follows the config: traced once, compiled, precision, device.

    Raises:
        AutotuneError: Trials cannot run, e.g. a search holds the record or a GPU is busy.
    """
    cpu = BusyCpu()
    search = SearchOptions(budget_s=budget_s, allow_busy_gpu=allow_busy_gpu, warm_start=False)
    with open_parts(problem, search, Session(started_s=started_s), clock, on_event, simulator=simulator) as (parts, _):
        diagnoser = Diagnoser(parts, busy_s=cpu.busy_s, cores=cpu.cores, is_brief=is_brief)
        if verifies:
            return _verification(check_code(Subject(problem=problem, clock=clock)), diagnoser.verify())
        static = static_checks(problem, clock, is_run=True)
        measured = diagnoser.run()
    results = (*static, *measured.results)
    shares = time_shares(measured.results, measured.bounds, static) if measured.bounds else []
    verdict = verdict_of(measured.results, measured.why_not_seen, static, shares)
    return Diagnosis(verdict=verdict, results=results, shares=tuple(shares))


def _verification(code: CheckResult, measured: Measured) -> Diagnosis:
    """Return the diagnosis of the step alone, with the code issues that slow it down independently of its data."""
    about_steps = tuple(one for one in code.issues if one.limit is Limit.HOST and one.severity is not Severity.NOTE)
    # issues of the data are not about the step
    seen = [
        replace(result, issues=tuple(one for one in result.issues if one.limit not in (*INPUT, Limit.STALLS)))
        for result in measured.results
    ]
    results = (replace(code, issues=about_steps), *seen)
    wrong = [one for result in results for one in result.issues if one.severity is not Severity.NOTE]
    unseen = measured.why_not_seen or next((one.why_not for one in measured.results if one.why_not), "")
    sentence = "The step follows the config in everything that the framework reports."
    limit: Limit | None = None
    if wrong:
        sentence, limit = f"The step differs from the config: {wrong[0].sentence}", wrong[0].limit or Limit.STEP
    elif unseen:
        sentence, limit = f"Not seen: {unseen}", Limit.NOT_SEEN
    return Diagnosis(verdict=DiagnosisVerdict(sentence=sentence, limit=limit), results=results)


def static_checks(problem: Problem | None, clock: Clock, *, is_run: bool = False) -> tuple[CheckResult, ...]:
    """Return the results of all static checks, within half a minute.

    Args:
        problem: Config and command; None checks only the machine and the installation.
        is_run: Whether trials follow, so that programs named in the config may be started.
    """
    subject = Subject(problem=problem, clock=clock, is_run=is_run)
    answers = query_framework(subject)
    return (
        check_hardware(subject),
        check_framework(subject, answers),
        check_memory(subject),
        check_storage(subject),
        check_configuration(subject),
        check_code(subject),
        check_graph(answers),
        check_native_loader(answers),
    )
