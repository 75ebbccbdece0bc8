"""Diagnosis from its first check to its verdict."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.clock import Clock
from autotune.diagnose.code_scan import check_code
from autotune.diagnose.config_checks import check_configuration
from autotune.diagnose.findings import (
    CheckResult,
    Diagnosis,
    Evidence,
    Issue,
    Limit,
    Severity,
    Verdict,
    counted,
    ratio_text,
)
from autotune.diagnose.framework import ask_framework, check_framework, check_graph, check_native_loader
from autotune.diagnose.hardware import check_hardware, check_memory
from autotune.diagnose.measured import Diagnoser, Measured
from autotune.diagnose.storage import check_storage
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import MEASURED_CHECKS, STATIC_CHECKS
from autotune.events import Event
from autotune.measure.host import BusyCpu
from autotune.options import SearchOptions
from autotune.search.open import Session, open_parts
from autotune.search.problem import Problem
from autotune.trial.instruments import Simulator


def diagnose_static(problem: Problem | None, clock: Clock) -> Diagnosis:
    """Diagnose without a single trial: this machine and its installation, and where there is one, the config.

    Args:
        problem: The config and the command; None for the machine alone.
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
    allow_busy_gpu: bool = False,
    verifies: bool = False,
    simulator: Simulator | None = None,
) -> Diagnosis:
    """Diagnose a training: static checks, then short trials of it.

    Args:
        problem: The config and the command; runnable.
        on_event: Told everything that happens.
        budget_s: The wall for everything, in seconds.
        started_s: When the process started, on the monotonic clock; the budget counts from there.
        allow_busy_gpu: Whether to make trials although somebody else is on the GPU.
        verifies: Whether to look only whether the step is what the config says: traced once, compiled, in its
            precision, on its device.
        simulator: Runs the trials in virtual time; None for processes.

    Raises:
        AutotuneError: Trials cannot be made: the record is held by a search, a GPU is busy, and the like.
    """
    cpu = BusyCpu()
    search = SearchOptions(budget_s=budget_s, allow_busy_gpu=allow_busy_gpu, warm_start=False)
    with open_parts(problem, search, Session(started_s=started_s), clock, on_event, simulator=simulator) as opened:
        diagnoser = Diagnoser(opened.parts, busy_s=cpu.busy_s, cores=cpu.cores)
        if verifies:
            return _verification(check_code(Subject(problem=problem, clock=clock)), diagnoser.verify())
        static = static_checks(problem, clock, is_run=True)
        measured = diagnoser.run()
    results = (*static, *measured.results)
    return Diagnosis(verdict=verdict_of(measured.results, measured.why_not_seen, static), results=results)


def _verification(code: CheckResult, measured: Measured) -> Diagnosis:
    """Return what was seen of the step alone: of the code that which makes a step slow whatever its data."""
    about_steps = tuple(one for one in code.issues if one.limit is Limit.HOST and one.severity is not Severity.NOTE)
    results = (replace(code, issues=about_steps), *measured.results)
    wrong = [one for result in results for one in result.issues if one.severity is not Severity.NOTE]
    unseen = measured.why_not_seen or next((one.why_not for one in measured.results if one.why_not), "")
    if wrong:
        sentence = f"Not as the config says: {wrong[0].sentence}"
    elif unseen:
        sentence = f"Not seen: {unseen}"
    else:
        sentence = "The step is what the config says, as far as the framework tells."
    limit = (wrong[0].limit or Limit.STEP) if wrong else Limit.NOT_SEEN if unseen else None
    return Diagnosis(verdict=Verdict(sentence=sentence, limit=limit), results=results)


def static_checks(problem: Problem | None, clock: Clock, *, is_run: bool = False) -> tuple[CheckResult, ...]:
    """Return the results of all static checks, in the order of their table; no training is started.

    It takes 10 s where TensorFlow is imported for it, and at most half a minute.

    Args:
        problem: What is diagnosed; None for this machine and this installation alone.
        is_run: Whether trials are made next, so that programs that the config names may be started.
    """
    look = Subject(problem=problem, clock=clock, is_run=is_run)
    answers = ask_framework(look)
    return (
        check_hardware(look),
        check_framework(look, answers),
        check_memory(look),
        check_storage(look),
        check_configuration(look),
        check_code(look),
        check_graph(answers),
        check_native_loader(answers),
    )


# Verdict: one sentence that says what limits a training, and what to do first. Pure.


_SPOILS_ALL = (Limit.THROTTLING, Limit.NEIGHBOUR)  # they make all other numbers doubtful, and come first
_INPUT = frozenset((Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING))
_SIDES = (_INPUT, frozenset((Limit.HOST, Limit.STEP)))  # which the same place in the code may be the reason for
_NAMES = {
    **dict.fromkeys(_INPUT, "Input-bound"),
    Limit.HOST: "Bound by the fixed cost of a step",
    Limit.STEP: "Bound by the step",
    Limit.OUTSIDE: "Much time passes outside of steps",
    Limit.COMPILING: "Compiled again and again",
    Limit.STALLS: "Stalls",
    Limit.NEIGHBOUR: "Somebody else is on the machine",
    Limit.THROTTLING: "The GPU is held down",
    Limit.MEMORY: "Memory is nearly full",
}


def verdict_of(results: Sequence[CheckResult], why_not_seen: str = "", static: Sequence[CheckResult] = ()) -> Verdict:
    """Return the verdict that follows from the results of the measured checks.

    Args:
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
        static: Results of the static checks, for the place in the code that the limit may come from.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return Verdict(sentence=f"Not seen: {why_not_seen}", limit=Limit.NOT_SEEN)
    main = _main(issues)
    if main is None or main.limit is None:
        why_no_input = next((one.why_not for one in results if one.check == "input" and one.why_not), "")
        if why_no_input:
            sentence = f"No limit was found, and the input was not seen: {why_no_input}."
            return Verdict(sentence=sentence, limit=Limit.NOT_SEEN)
        sentence = "Nothing worth doing was found: the step itself is the limit, and no change that was tried helps."
        return Verdict(sentence=sentence, limit=Limit.STEP)
    sentence = f"{_NAMES[main.limit]}: {main.sentence}"
    counted = [result for result in results if result.check == "recurring-costs"]
    if (place := _place(main.limit, (*static, *counted))) is not None and place is not main:
        sentence = f"{sentence} Look at {place.place}: {place.sentence[:1].lower()}{place.sentence[1:]}"
    measured = [
        (one.gain, one)
        for issue in issues
        for one in issue.recommendations
        if one.evidence is Evidence.MEASURED and one.gain
    ]
    gain, best = max(measured, key=lambda one: one[0].low, default=(None, None))
    if gain is not None and best is not None and best not in main.recommendations:
        sentence = f"{sentence} Measured: {best.sentence}, {ratio_text(gain)}."
    return Verdict(sentence=sentence, limit=main.limit, bound=main.bound)


def _place(limit: Limit, static: Sequence[CheckResult]) -> Issue | None:
    side = next((side for side in _SIDES if limit in side), frozenset({limit}))
    return next((one for result in static for one in result.issues if one.limit in side and one.place), None)


def static_verdict(results: Sequence[CheckResult]) -> Verdict:
    """Return the verdict of checks that made no trial."""
    by_weight: dict[Severity, list[Issue]] = {severity: [] for severity in Severity}
    for result in results:
        for issue in result.issues:
            by_weight[issue.severity].append(issue)
    if errors := by_weight[Severity.ERROR]:
        return Verdict(sentence=f"{counted(len(errors), 'error')}, the first: {errors[0].sentence}")
    if warnings := by_weight[Severity.WARNING]:
        return Verdict(sentence=f"No error; {counted(len(warnings), 'warning')}, the first: {warnings[0].sentence}")
    return Verdict(sentence="Nothing was found that is wrong; what limits the speed is seen only by trials.")


def _main(issues: Sequence[Issue]) -> Issue | None:
    """Return the issue that the verdict is about: what spoils all numbers, else what costs most; None if nothing does.

    A limit comes before a measured change, which is one way around it. Memory that is full, or fills, does not slow
    training down, and may end it: that is the verdict where nothing slows it down.
    """
    telling = [issue for issue in issues if issue.limit is not None and issue.severity is not Severity.NOTE]
    spoiling = [issue for issue in telling if issue.limit in _SPOILS_ALL]
    if spoiling:
        return min(spoiling, key=lambda issue: _SPOILS_ALL.index(issue.limit or Limit.NEIGHBOUR))
    # 5 % for certain are worth doing something for
    worth = [issue for issue in telling if issue.bound is not None and issue.bound.low > 1.05]
    limits = [issue for issue in worth if not any(one.evidence is Evidence.MEASURED for one in issue.recommendations)]
    memory = [issue for issue in telling if issue.limit is Limit.MEMORY]
    return max(limits or memory or worth, key=lambda issue: issue.bound.ratio if issue.bound else 0.0, default=None)


CHECKS = (*STATIC_CHECKS, *MEASURED_CHECKS)
"""All checks, in the order in which they are shown."""


# Condition under which a diagnosis fails, for continuous integration.


_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_QUANTITIES = ("gain", "bound", "errors", "warnings")


@dataclass(frozen=True, kw_only=True)
class FailOn:
    """Condition on one quantity of a diagnosis."""

    text: str
    quantity: str
    comparison: str
    limit: float

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Return whether the condition holds; never where the quantity is not known."""
        known = self._values(diagnosis)[self.quantity]
        return known is not None and _OPERATORS[self.comparison](known, self.limit)

    def _values(self, diagnosis: Diagnosis) -> dict[str, float | None]:
        measured = [one.gain for one in diagnosis.recommendations if one.evidence is Evidence.MEASURED and one.gain]
        weights = [issue.severity for issue in diagnosis.issues]
        return {
            "gain": max((gain.ratio for gain in measured), default=None),
            "bound": diagnosis.verdict.bound.ratio if diagnosis.verdict.bound else None,
            "errors": weights.count(Severity.ERROR),
            "warnings": weights.count(Severity.WARNING),
        }


def parse_fail_on(text: str) -> FailOn:
    """Parse a condition, e.g. ``gain>=1.2``.

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*", text)
    if match is None or match[1] not in _QUANTITIES:
        names = ", ".join(_QUANTITIES)
        raise ValueError(f"{text!r} is no condition: a name ({names}), one of >= > <= < ==, and a number")
    return FailOn(text=text, quantity=match[1], comparison=match[2], limit=float(match[3]))
