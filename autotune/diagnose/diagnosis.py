"""Diagnosis from its first check to its verdict."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.clock import Clock
from autotune.diagnose.findings import (
    Check,
    CheckResult,
    Diagnosis,
    Evidence,
    Issue,
    Limit,
    Recommendation,
    Severity,
    Verdict,
    ratio_text,
)
from autotune.diagnose.measured import MEASURED_CHECKS, Diagnoser
from autotune.diagnose.measured_steps import INPUT_LIMIT
from autotune.diagnose.static import STATIC_CHECKS, static_checks
from autotune.events import Event
from autotune.measure.host import BusyCpu
from autotune.messages import Message, _, ngettext, uncapitalized
from autotune.options import SearchOptions
from autotune.search.open import Part, open_parts
from autotune.search.problem import Problem
from autotune.trial.launch import Runner


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
        on_event: Told everything that happens.
        runner: Makes the trials; None for real ones.
        busy_s: Returns the CPU time of all processes; None for this machine's.

    Raises:
        AutotuneError: Trials cannot be made: the record is held by a search, a GPU is busy, and the like.
    """
    cpu = BusyCpu()
    search = SearchOptions(budget_s=options.budget_s, allow_busy_gpu=options.allow_busy_gpu, warm_start=False)
    with open_parts(problem, search, Part(started_s=options.started_s), clock, on_event, runner=runner) as opened:
        static = static_checks(problem, clock, is_run=True)
        diagnoser = Diagnoser(opened.parts, opened.consumers, busy_s=busy_s or cpu.busy_s, cores=cpu.cores)
        measured = diagnoser.run()
    results = (*static, *measured.results)
    return Diagnosis(verdict=verdict_of(measured.results, measured.why_not_seen, static), results=results)


# Verdict: one sentence that says what limits a training, and what to do first. Pure.


_SPOILS_ALL = (Limit.THROTTLING, Limit.NEIGHBOUR)
"""Limits that make all other numbers doubtful, and come first."""

_SIDES = (
    frozenset({Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING}),
    frozenset({Limit.HOST, Limit.STEP}),
)
"""Limits that the same place in the code may be the reason for."""

_NAMES = {
    **dict.fromkeys((Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING), _("Input-bound")),
    Limit.HOST: _("Bound by the fixed cost of a step"),
    Limit.STEP: _("Bound by the step"),
    Limit.OUTSIDE: _("Much time passes outside of steps"),
    Limit.STALLS: _("Stalls"),
    Limit.NEIGHBOUR: _("Somebody else is on the machine"),
    Limit.THROTTLING: _("The GPU is held down"),
    Limit.MEMORY: _("Memory is nearly full"),
}


def verdict_of(results: Sequence[CheckResult], why_not_seen: str = "", static: Sequence[CheckResult] = ()) -> Verdict:
    """Return the verdict that follows from the results of the measured checks.

    Args:
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
        static: Results of the static checks, for the place in the code that the limit may come from.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return Verdict(sentence=_("Not seen: {why}", why=why_not_seen), limit=Limit.NOT_SEEN)
    main = _main(issues)
    best = _best([one for issue in issues for one in issue.recommendations])
    if main is None and (why := _why_no_input(results)):
        sentence = _("No limit was found, and the input was not seen: {why}.", why=why)
        return Verdict(sentence=sentence, limit=Limit.NOT_SEEN)
    if main is None:
        sentence = _(
            "Nothing worth doing was found: the step itself is the limit, and no change that was tried helps.",
        )
        return Verdict(sentence=sentence, limit=Limit.STEP)
    assert main.limit is not None, "the main issue is about a limit"
    sentence = _("{name}: {sentence}", name=_NAMES[main.limit], sentence=main.sentence)
    if (place := _place(main.limit, static)) is not None:
        what = uncapitalized(place.sentence)
        sentence = _("{verdict} Look at {place}: {what}", verdict=sentence, place=place.place, what=what)
    if best is not None and best.gain is not None and best not in main.recommendations:
        sentence = _(
            "{verdict} Measured: {change}, {gain}.",
            verdict=sentence,
            change=best.sentence,
            gain=ratio_text(best.gain),
        )
    return Verdict(sentence=sentence, limit=main.limit, bound=main.bound)


def _why_no_input(results: Sequence[CheckResult]) -> str:
    return next((result.why_not for result in results if result.check == INPUT_LIMIT and result.why_not), "")


def _place(limit: Limit, static: Sequence[CheckResult]) -> Issue | None:
    """Return the first place in the code that is about the same side of training as a limit; None without one."""
    side = next((side for side in _SIDES if limit in side), frozenset({limit}))
    return next((one for result in static for one in result.issues if one.limit in side and one.place), None)


def static_verdict(results: Sequence[CheckResult]) -> Verdict:
    """Return the verdict of checks that made no trial."""
    issues = [issue for result in results for issue in result.issues]
    errors = [issue for issue in issues if issue.severity is Severity.ERROR]
    warnings = [issue for issue in issues if issue.severity is Severity.WARNING]
    if errors:
        return Verdict(
            sentence=_("{errors}, the first: {first}", errors=_errors(len(errors)), first=errors[0].sentence)
        )
    if warnings:
        return Verdict(
            sentence=_(
                "No error; {warnings}, the first: {first}",
                warnings=_warnings(len(warnings)),
                first=warnings[0].sentence,
            )
        )
    return Verdict(sentence=_("Nothing was found that is wrong; what limits the speed is seen only by trials."))


def _errors(count: int) -> Message:
    return ngettext("{count} error", "{count} errors", count)


def _warnings(count: int) -> Message:
    return ngettext("{count} warning", "{count} warnings", count)


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


def _best(recommendations: Sequence[Recommendation]) -> Recommendation | None:
    """Return the measured recommendation with the largest certain gain; None if none was measured."""
    measured = [one for one in recommendations if one.evidence is Evidence.MEASURED and one.gain]
    return max(measured, key=lambda one: one.gain.low if one.gain else 0.0, default=None)


# Table of all checks, one row each, with an id that stays. A new check is a row and its function.


CHECKS: tuple[Check, ...] = (*STATIC_CHECKS, *MEASURED_CHECKS)
"""All checks, in the order in which they are shown."""


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_CONDITION = re.compile(r"\s*([a-z]+)\s*(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*")


def _gain(diagnosis: Diagnosis) -> float | None:
    measured = [one.gain.ratio for one in diagnosis.recommendations if one.evidence is Evidence.MEASURED and one.gain]
    return max(measured, default=None)


def _bound(diagnosis: Diagnosis) -> float | None:
    return diagnosis.verdict.bound.ratio if diagnosis.verdict.bound else None


def _count(severity: Severity) -> Callable[[Diagnosis], float | None]:
    return lambda diagnosis: float(sum(issue.severity is severity for issue in diagnosis.issues))


QUANTITIES: dict[str, Callable[[Diagnosis], float | None]] = {
    "gain": _gain,
    "bound": _bound,
    "errors": _count(Severity.ERROR),
    "warnings": _count(Severity.WARNING),
}
"""Quantities of a condition: the largest measured gain, the verdict's bound, and the issues by their weight."""


@dataclass(frozen=True, kw_only=True)
class FailOn:
    """Condition on one quantity of a diagnosis."""

    text: str
    quantity: str
    comparison: str
    limit: float

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Return whether the condition holds; never where the quantity is not known."""
        value = QUANTITIES[self.quantity](diagnosis)
        return value is not None and _OPERATORS[self.comparison](value, self.limit)


def parse_fail_on(text: str) -> FailOn:
    """Parse a condition, e.g. ``gain>=1.2``.

    Raises:
        ValueError: It is none.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or match[1] not in QUANTITIES:
        names = ", ".join(QUANTITIES)
        raise ValueError(f"{text!r} is no condition: a name ({names}), one of >= > <= < ==, and a number")
    return FailOn(text=text, quantity=match[1], comparison=match[2], limit=float(match[3]))
