"""Verdict of a diagnosis: one sentence that says what limits a training, and what to do first. Pure."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.diagnose.findings import (
    LEAST_BOUND,
    CheckResult,
    Diagnosis,
    DiagnosisVerdict,
    GainBasis,
    Issue,
    Limit,
    Severity,
    TimeShare,
    counted,
    ratio_text,
)
from autotune.diagnose.shares import INPUT, issue_with_place

_SPOILS_ALL = (Limit.THROTTLING, Limit.NEIGHBOUR)  # they make all other numbers doubtful
_NAMES = {
    **dict.fromkeys(INPUT, "Input-bound"),
    Limit.HOST: "Bound by the fixed cost of a step",
    Limit.STEP: "Bound by the step",
    Limit.OUTSIDE: "Much time passes outside of steps",
    Limit.COMPILING: "Compiled again and again",
    Limit.STALLS: "Stalls",
    Limit.DRIFT: "Slower and slower",
    Limit.STRAGGLER: "One rank holds up the others",
    Limit.NEIGHBOUR: "Somebody else is on the machine",
    Limit.THROTTLING: "The GPU is held down",
    Limit.MEMORY: "Memory is nearly full",
}


def verdict_of(
    results: Sequence[CheckResult],
    why_not_seen: str = "",
    static: Sequence[CheckResult] = (),
    shares: Sequence[TimeShare] = (),
) -> DiagnosisVerdict:
    """Return the verdict that follows from the results of the measured checks.

    Args:
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
        static: Results of the static checks, for the place in the code that the limit may come from.
        shares: Where the time goes; without them bounds alone tell what costs most.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return DiagnosisVerdict(sentence=f"Not seen: {why_not_seen}", limit=Limit.NOT_SEEN)
    main = _main(issues, shares)
    if main is None or main.limit is None:
        why_no_input = next((one.why_not for one in results if one.check == "input" and one.why_not), "")
        if why_no_input:
            sentence = f"No limit was found, and the input was not seen: {why_no_input}."
            return DiagnosisVerdict(sentence=sentence, limit=Limit.NOT_SEEN)
        sentence = "Nothing worth doing was found: the step itself is the limit, and no change that was tried helps."
        return DiagnosisVerdict(sentence=sentence, limit=Limit.STEP)
    sentence = f"{_NAMES[main.limit]}: {main.sentence}"
    located = issue_with_place(main.limit, main, (*results, *static))
    if located is not None and located is not main:
        sentence = f"{sentence} Look at {located.place}: {_continued(located.sentence)}"
    if doubtful := [one for one in _spoiling(issues) if one is not main]:
        sentence = f"{sentence} The numbers are doubtful: {_continued(doubtful[0].sentence)}"
    measured = [
        (one.gain, one)
        for issue in issues
        for one in issue.recommendations
        if one.evidence is GainBasis.MEASURED and one.gain
    ]
    gain, best = max(measured, key=lambda one: one[0].low, default=(None, None))
    if gain is not None and best is not None and best not in main.recommendations:
        sentence = f"{sentence} Measured: {best.sentence}, {ratio_text(gain)}."
    return DiagnosisVerdict(sentence=sentence, limit=main.limit, bound=main.bound)


def _continued(sentence: str) -> str:
    """Return a sentence as it stands behind a colon."""
    return f"{sentence[:1].lower()}{sentence[1:]}"


def static_verdict(results: Sequence[CheckResult]) -> DiagnosisVerdict:
    """Return the verdict of checks that made no trial."""
    by_weight: dict[Severity, list[Issue]] = {severity: [] for severity in Severity}
    for result in results:
        for issue in result.issues:
            by_weight[issue.severity].append(issue)
    if errors := by_weight[Severity.ERROR]:
        return DiagnosisVerdict(sentence=f"{counted(len(errors), 'error')}, the first: {_with_place(errors[0])}")
    if warnings := by_weight[Severity.WARNING]:
        return DiagnosisVerdict(
            sentence=f"No error; {counted(len(warnings), 'warning')}, the first: {_with_place(warnings[0])}"
        )
    return DiagnosisVerdict(sentence="Nothing was found that is wrong; what limits the speed is seen only by trials.")


def _with_place(issue: Issue) -> str:
    is_said = not issue.place or issue.place in issue.sentence
    return issue.sentence if is_said else f"{issue.sentence} ({issue.place})"


def _main(issues: Sequence[Issue], shares: Sequence[TimeShare]) -> Issue | None:
    """Return the issue that the verdict is about: what costs most, else what makes numbers doubtful; None for nothing.

    A limit comes before a measured change, which is one way around it. Memory that is full, or fills, does not slow
    training down, and may end it: that is the verdict where nothing slows it down.
    """
    telling = [issue for issue in issues if issue.limit is not None and issue.severity is not Severity.NOTE]
    spoiling = _spoiling(issues)
    # 5 % for certain are worth doing something for, and a tenth is worth a verdict
    bounded = [(one, one.bound) for one in telling if one.bound is not None and one not in spoiling]
    worth = [one for one, bound in bounded if bound.low > 1.05 and bound.ratio >= LEAST_BOUND]
    limits = [issue for issue in worth if not any(one.evidence is GainBasis.MEASURED for one in issue.recommendations)]
    memory = [issue for issue in telling if issue.limit is Limit.MEMORY]
    taken: Counter[Limit] = Counter()
    for share in shares:
        taken[share.limit] += share.fraction  # type: ignore[assignment]

    def cost(one: Issue) -> tuple[float, float]:
        assert one.limit is not None, "others are left out"
        is_of_steps = one.limit is Limit.STEP  # their share is what is left, whatever it could be
        return 0.0 if is_of_steps else taken[one.limit], one.bound.ratio if one.bound else 0.0

    return max(limits or memory or worth, key=cost, default=next(iter(spoiling), None))


def _spoiling(issues: Sequence[Issue]) -> list[Issue]:
    """Return what makes all numbers doubtful, the worst first."""
    found = [one for one in issues if one.limit in _SPOILS_ALL and one.severity is not Severity.NOTE]
    return sorted(found, key=lambda one: _SPOILS_ALL.index(one.limit or Limit.NEIGHBOUR))


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
        measured = [one.gain for one in diagnosis.recommendations if one.evidence is GainBasis.MEASURED and one.gain]
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
