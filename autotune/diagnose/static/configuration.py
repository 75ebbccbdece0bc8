"""Check of the config: mistakes in it, and values that do not suit this machine."""

from autotune.diagnose.findings import CheckResult, Severity
from autotune.diagnose.messages.message import said
from autotune.diagnose.static.config_for_machine import MISFITS
from autotune.diagnose.static.config_keys import CONFIGURATION, known_keys
from autotune.diagnose.static.config_mistakes import MISTAKES
from autotune.diagnose.static.look import Look

_WEIGHT = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def check_configuration(look: Look) -> CheckResult:
    """Look at the values of the config.

    Args:
        look: What is diagnosed.
    """
    problem = look.problem
    if problem is None:
        return CheckResult(check=CONFIGURATION, why_not=said("config.none", "no config is given"))
    found = [issue for kind in (*MISTAKES, *MISFITS) for issue in kind(problem)]
    known = len(known_keys(problem))
    return CheckResult(
        check=CONFIGURATION,
        issues=tuple(sorted(found, key=lambda issue: _WEIGHT[issue.severity])),
        sentence=said(
            "config.values",
            "{values} values, {known} of them known knobs",
            values=len(problem.settings.scalars),
            known=known,
        ),
    )
