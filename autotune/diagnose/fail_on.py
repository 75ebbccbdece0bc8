"""Condition under which a diagnosis counts as failed, for continuous integration: ``gain>=1.2``, ``errors>0``."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from autotune.diagnose.findings import Diagnosis, Evidence, Severity

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
    """Condition on one quantity of a diagnosis.

    Attributes:
        text: As it was typed.
        quantity: Name of the quantity, one of `QUANTITIES`.
        comparison: How it is compared.
        limit: What it is compared with.
    """

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
