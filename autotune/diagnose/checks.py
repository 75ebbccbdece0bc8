"""Table of all checks, one row each, with an id that stays. A new check is a row and its function."""

from autotune.diagnose.check import Check
from autotune.diagnose.measured.checks import MEASURED_CHECKS
from autotune.diagnose.static.checks import STATIC_CHECKS

CHECKS: tuple[Check, ...] = (*STATIC_CHECKS, *MEASURED_CHECKS)
"""All checks, in the order in which they are shown."""


def check_named(name: str) -> Check:
    """Return the check of an id."""
    return next(check for check in CHECKS if check.id == name)
