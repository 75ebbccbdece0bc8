"""Entry to the static checks: all of them, one after the other, in seconds."""

from collections.abc import Callable, Mapping

from autotune.clock import Clock
from autotune.diagnose.findings import CheckResult
from autotune.diagnose.static.checks import STATIC_CHECKS
from autotune.diagnose.static.code_scan import check_code
from autotune.diagnose.static.configuration import check_configuration
from autotune.problem.problem import Problem

_CHECKS: Mapping[str, Callable[[Problem | None, Clock], CheckResult]] = {
    "configuration": check_configuration,
    "code": check_code,
}


def static_checks(problem: Problem | None, clock: Clock) -> tuple[CheckResult, ...]:
    """Return the results of all static checks, in the order of their table; no training is started.

    Args:
        problem: What is diagnosed; None for this machine and this installation alone.
        clock: The machine's clock.
    """
    return tuple(_CHECKS[check.id](problem, clock) for check in STATIC_CHECKS)
