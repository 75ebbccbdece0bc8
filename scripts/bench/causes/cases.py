"""Cases with one known cause each, outcomes of diagnosing them, and how many of these are right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.diagnose.findings import Limit, Verdict

HEALTHY = "healthy"
"""Cause of the cases that have none: their step is the limit."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Training with exactly one known cause of slowness, or none.

    Attributes:
        name: Its name, unique among all cases.
        cause: The cause in words, as the confusion table has it; `HEALTHY` for none.
        expected: Limits of a right verdict; more than one only where the cause is the one as much as the other.
        run: Diagnoses it within a budget, in seconds, and returns the verdict.
        is_real: Whether a real training is run; else its numbers are simulated.
        why_not: Reason for which it cannot be run here; empty if it can.
    """

    name: str
    cause: str
    expected: frozenset[Limit]
    run: Callable[[float], Verdict]
    is_real: bool
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a case that was diagnosed.

    Attributes:
        case: The case.
        limit: Limit of the verdict; None if there was no verdict.
        sentence: Sentence of the verdict, or why there was none.
    """

    case: Case
    limit: Limit | None
    sentence: str

    @property
    def is_right(self) -> bool:
        """True if the verdict names the cause."""
        return self.limit in self.case.expected

    @property
    def is_false_alarm(self) -> bool:
        """True if a healthy training was called limited by something."""
        return self.case.cause == HEALTHY and not self.is_right


@dataclass(frozen=True, kw_only=True)
class Score:
    """Counts over some outcomes.

    Attributes:
        cases: Cases with a cause.
        right: Those of them whose verdict names it.
        healthy: Healthy cases.
        false_alarms: Those of them whose verdict names a cause.
    """

    cases: int
    right: int
    healthy: int
    false_alarms: int


def score_of(outcomes: Sequence[Outcome]) -> Score:
    """Return the counts over these outcomes."""
    healthy = [one for one in outcomes if one.case.cause == HEALTHY]
    caused = [one for one in outcomes if one.case.cause != HEALTHY]
    return Score(
        cases=len(caused),
        right=sum(one.is_right for one in caused),
        healthy=len(healthy),
        false_alarms=sum(one.is_false_alarm for one in healthy),
    )
