"""Verdict of a diagnosis: one sentence with the limit of a training and the first thing to do. Pure."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.config.keys import counted
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
    ratio_text,
)
from autotune.diagnose.shares import INPUT, issue_with_place
from autotune.records import Ratio

_MAKES_DOUBTFUL = (Limit.THROTTLING, Limit.NEIGHBOUR)  # all other numbers are unreliable; the worst first
_NAMES = {
    **dict.fromkeys(INPUT, "Input-bound"),
    Limit.HOST: "Bound by the fixed cost of each step",
    Limit.STEP: "Bound by the step",
    Limit.OUTSIDE: "Much time outside of steps",
    Limit.COMPILING: "Repeated compilation",
    Limit.STALLS: "Stalls",
    Limit.DRIFT: "Steps get slower",
    Limit.STRAGGLER: "Slow rank",
    Limit.NEIGHBOUR: "Other processes use the machine",
    Limit.THROTTLING: "The GPU is throttled",
    Limit.MEMORY: "Memory is nearly full",
}


def verdict_of(
    results: Sequence[CheckResult],
    why_not_seen: str = "",
    static: Sequence[CheckResult] = (),
    shares: Sequence[TimeShare] = (),
) -> DiagnosisVerdict:
    """Return the verdict from the results of the measured checks.

    Args:
        why_not_seen: Reason that no trial has a measurement; empty if one has.
        shares: Where the time goes; if empty, bounds alone rank the issues.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return DiagnosisVerdict(sentence=f"Not seen: {why_not_seen}", limit=Limit.NOT_SEEN)
    main = _main(issues, shares)
    if main is None or main.limit is None:
        why_no_input = next((one.why_not for one in results if one.check == "input" and one.why_not), "")
        if why_no_input:
            sentence = f"No limit was found, and the input could not be measured: {why_no_input}."
            return DiagnosisVerdict(sentence=sentence, limit=Limit.NOT_SEEN)
        sentence = "No worthwhile change was found: the step itself is the limit, and no tried change helps."
        return DiagnosisVerdict(sentence=sentence, limit=Limit.STEP)
    sentence = f"{_NAMES[main.limit]}: {main.sentence}"
    located = issue_with_place(main.limit, main, (*results, *static))
    if located is not None and located is not main:
        is_named = located.sentence.startswith(located.place)
        about = located.sentence if is_named else f"Look at {located.place}: {_continued(located.sentence)}"
        sentence = f"{sentence} {about}"
    if warnings := [one for one in _doubtful(issues) if one is not main]:
        sentence = f"{sentence} The numbers are doubtful: {_continued(warnings[0].sentence)}"
    measured = [
        (one.gain, one)
        for issue in issues
        for one in issue.recommendations
        if one.evidence is GainBasis.MEASURED and one.gain
    ]
    gain, best = max(measured, key=lambda one: one[0].low, default=(None, None))
    if gain is not None and best is not None and best not in main.recommendations:
        sentence = f"{sentence} Measured: {best.sentence}, {ratio_text(gain)}."
    return DiagnosisVerdict(sentence=sentence, limit=main.limit, bound=_within_share(main, shares))


def _within_share(main: Issue, shares: Sequence[TimeShare]) -> Ratio | None:
    """Return the bound of an issue, at most that of the time that its limit has after the other causes."""
    taken = sum(one.fraction for one in shares if one.limit is main.limit)
    if main.bound is None or not 0.0 < taken < 1.0:
        return main.bound
    most, bound = 1.0 / (1.0 - taken), main.bound
    return bound if bound.ratio <= most else Ratio(ratio=most, low=min(bound.low, most), high=most)


def _continued(sentence: str) -> str:
    return f"{sentence[:1].lower()}{sentence[1:]}"


def static_verdict(results: Sequence[CheckResult]) -> DiagnosisVerdict:
    """Return the verdict of checks without trials."""
    issues = [issue for result in results for issue in result.issues]
    for severity, start in ((Severity.ERROR, ""), (Severity.WARNING, "No error; ")):
        if found := [issue for issue in issues if issue.severity is severity]:
            count = counted(len(found), severity.value)
            return DiagnosisVerdict(sentence=f"{start}{count}, the first: {_with_place(found[0])}")
    return DiagnosisVerdict(sentence="No problem was found; finding what limits the speed takes trials.")


def _with_place(issue: Issue) -> str:
    is_named = not issue.place or issue.place in issue.sentence
    return issue.sentence if is_named else f"{issue.sentence} ({issue.place})"


def _main(issues: Sequence[Issue], shares: Sequence[TimeShare]) -> Issue | None:
    """Return the issue with the highest cost, else one that makes the numbers doubtful, else None.

    A limit comes before a measured change, which only works around it, and before memory, which rarely slows down.
    """
    candidates = [issue for issue in issues if issue.limit is not None and issue.severity is not Severity.NOTE]
    doubtful = _doubtful(issues)
    # a certain gain of 5 % makes an issue, a tenth makes a verdict
    bounded = [(one, one.bound) for one in candidates if one.bound is not None and one not in doubtful]
    worth = [one for one, bound in bounded if bound.low > 1.05 and bound.ratio >= LEAST_BOUND]
    limits = [issue for issue in worth if not any(one.evidence is GainBasis.MEASURED for one in issue.recommendations)]
    memory = [issue for issue in candidates if issue.limit is Limit.MEMORY]
    taken: Counter[Limit] = Counter()
    for share in shares:
        taken[share.limit] += share.fraction  # type: ignore[assignment]

    def cost(one: Issue) -> tuple[float, float]:
        assert one.limit is not None, "others are left out"
        is_of_steps = one.limit is Limit.STEP  # their share is the remainder, not a measured cost
        return 0.0 if is_of_steps else taken[one.limit], one.bound.ratio if one.bound else 0.0

    return max(limits or memory or worth, key=cost, default=next(iter(doubtful), None))


def _doubtful(issues: Sequence[Issue]) -> list[Issue]:
    """Return the issues that make all numbers doubtful, the worst first."""
    found = [one for one in issues if one.limit in _MAKES_DOUBTFUL and one.severity is not Severity.NOTE]
    return sorted(found, key=lambda one: _MAKES_DOUBTFUL.index(one.limit or Limit.NEIGHBOUR))


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
        """Return whether the condition holds; False if the quantity is unknown."""
        measured = [one.gain for one in diagnosis.recommendations if one.evidence is GainBasis.MEASURED and one.gain]
        severities = [issue.severity for issue in diagnosis.issues]
        known = {
            "gain": max((gain.ratio for gain in measured), default=None),
            "bound": diagnosis.verdict.bound.ratio if diagnosis.verdict.bound else None,
            "errors": severities.count(Severity.ERROR),
            "warnings": severities.count(Severity.WARNING),
        }[self.quantity]
        return known is not None and _OPERATORS[self.comparison](known, self.limit)


def parse_fail_on(text: str) -> FailOn:
    """Parse a condition, e.g. ``gain>=1.2``.

    Raises:
        ValueError: The text is not a condition.
    """
    match = re.fullmatch(r"\s*([a-z]+)\s*(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*", text)
    if match is None or match[1] not in _QUANTITIES:
        names = ", ".join(_QUANTITIES)
        raise ValueError(f"{text!r} is not a condition: use a name ({names}), one of >= > <= < ==, and a number")
    return FailOn(text=text, quantity=match[1], comparison=match[2], limit=float(match[3]))
